package command

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
)

// told takes lines of a log, and ends something at that one.
type told struct {
	strings.Builder
	left int
	end  func()
}

func (t *told) Write(line []byte) (int, error) {
	if t.left--; t.left == 0 {
		t.end()
	}
	return t.Builder.Write(line)
}

// An invoker that cannot even be started cannot say why: its agent does.
func TestWhyNoInvokerWasStartedIsLogged(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	former := exec.Command("true")
	if err := former.Run(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &told{left: 2, end: cancel}
		ended := make(chan struct{})
		close(ended)
		c := &companion{
			doors: doors{{"listen", closed}}, log: slog.New(slog.NewTextHandler(log, nil)),
			running: &running{cmd: former, ended: ended, err: errors.New("it was killed")},
		}
		c.keep(ctx)
		if !strings.Contains(log.String(), "use of closed network connection") {
			t.Errorf("the log says %s", log)
		}
	})
}
