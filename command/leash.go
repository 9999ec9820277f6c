package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"strings"

	"golang.org/x/sys/unix"
)

// A leash joins an invoker to the agent that started it. An invoker that was started
// otherwise has none.
type leash struct {
	heard *bufio.Reader
	logs  *logFlags
}

// takeLeash confines this process if an agent has started it.
func takeLeash(logs *logFlags) (*leash, error) {
	if inherited()[0] == "" {
		return nil, nil
	}
	unix.CloseOnExec(firstInherited)
	inheritedDoors() // now, so that no number of theirs is taken for another file
	heard := bufio.NewReader(os.NewFile(firstInherited, "leash"))
	return &leash{heard, logs}, confine()
}

// await returns when the agent is there. From then on, the context ends with it, and the log has
// the level that it names.
func (l *leash) await(ctx context.Context, log *slog.Logger) (context.Context, error) {
	if l == nil {
		return ctx, nil
	}
	tellParent(opened)
	heard := make(chan string, 1)
	next := func() { line, _ := l.heard.ReadString('\n'); heard <- strings.TrimSpace(line) }
	go next()
	select {
	case word := <-heard:
		if word != begin {
			return ctx, errors.New("the agent has ended before it was ready")
		}
	case <-ctx.Done():
		return ctx, ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for {
			go next()
			select {
			case word := <-heard:
				level, is := strings.CutPrefix(word, logLevel)
				if !is {
					log.Error("the agent has ended, and the invoker ends with it")
					return
				}
				l.logs.level = level
				l.logs.apply()
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, nil
}

// tell tells the agent why the invoker ends, and what to do if the user of this process may not use
// a file.
func (l *leash) tell(err error) error {
	if l == nil || err == nil {
		return err
	}
	var path *fs.PathError
	if errors.As(err, &path) && errors.Is(err, fs.ErrPermission) {
		err = ofOtherUser(err)
	}
	tellParent(err.Error())
	return err
}

func ofOtherUser(err error) error {
	name := fmt.Sprint(os.Getuid())
	if u, unknown := user.LookupId(name); unknown == nil {
		name = u.Username
	}
	return fmt.Errorf("%w; the invoker runs as user %s, who must be able to reach it:"+
		" chgrp it to the user's group and chmod g+r", err, name)
}
