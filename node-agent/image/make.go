package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// A node makes nothing itself: it starts a builder (`fastiov image build THING`), which ends with
// the node, with all that it has started, and leaves in the cache a whole entry or nothing. Because
// it may be killed at any time, it installs no packages on this machine (--no-install).

const (
	buildDeadline = 30 * time.Minute // of one builder
	builderNice   = 10               // at least: sandboxes come first
	lastWords     = time.Second      // for the output of a builder that has ended
)

// Built is the last word of a builder, as JSON.
type Built struct {
	Dir     string `json:"dir"`     // the entry
	Fetched int64  `json:"fetched"` // bytes from Debian's mirror
}

// builds are the things that builders make for this process: each once however many wait for it,
// one after the other. A build that nobody waits for any more goes on, so the next start finds it.
type builds struct {
	ctx  context.Context
	end  context.CancelFunc
	now  func() time.Time
	turn *semaphore.Weighted
	all  sync.WaitGroup
	mu   sync.Mutex
	made map[string]*making // under way, or failed a moment ago
}

// A making is a thing that is being built, or has just been.
type making struct {
	doing string    // under builds.mu
	until time.Time // likewise; of a failure: it is not tried again before
	done  chan struct{}
	dir   string // set when it is done
	err   error
}

func newBuilds() *builds {
	ctx, end := context.WithCancel(context.Background())
	return &builds{ctx: ctx, end: end, now: time.Now, turn: semaphore.NewWeighted(1),
		made: map[string]*making{}}
}

// close ends the builders.
func (b *builds) close() {
	b.end()
	b.all.Wait()
}

// doing says what is being done to make a thing; it is empty where nothing is.
func (b *builds) doing(thing string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.made[thing]; m != nil {
		return m.doing
	}
	return ""
}

// Make has the builder make a thing if the cache lacks it. It returns the entry, which stays in
// use.
func (c *Cache) Make(ctx context.Context, thing string) (dir string, err error) {
	const tries = 2 // it may be evicted before it is in use
	for range tries {
		m := c.joinBuild(thing)
		select {
		case <-m.done:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if m.err != nil {
			return "", m.err
		}
		if held, err := c.hold(ctx, filepath.Base(m.dir)); held || err != nil {
			return m.dir, err
		}
	}
	return "", fmt.Errorf("image %s: its builder made it, and it is not in %s", thing, c.dir)
}

// joinBuild returns the build that is under way, or has failed within passingAge, or begins one.
func (c *Cache) joinBuild(thing string) *making {
	b := c.builds
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.made[thing]
	if m == nil || !m.until.IsZero() && !b.now().Before(m.until) {
		m = &making{doing: "waits until its builder can start", done: make(chan struct{})}
		b.made[thing] = m
		b.all.Go(func() {
			m.dir, m.err = c.runBuilder(b.ctx, thing, func(doing string) {
				b.mu.Lock()
				defer b.mu.Unlock()
				m.doing = doing
			})
			b.mu.Lock()
			defer b.mu.Unlock()
			if m.err == nil {
				delete(b.made, thing)
			}
			m.doing, m.until = "", b.now().Add(passingAge)
			close(m.done)
		})
	}
	return m
}

// runBuilder runs a builder.
func (c *Cache) runBuilder(
	ctx context.Context, thing string, doing func(string),
) (dir string, err error) {
	if err := c.builds.turn.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer c.builds.turn.Release(1)
	doing("builds " + thing)
	late := fmt.Errorf("image %s: it was not built within %s", thing, buildDeadline)
	ctx, cancel := context.WithTimeoutCause(ctx, buildDeadline, late)
	defer cancel()
	var out bytes.Buffer
	progress := &progress{to: c.out, doing: doing}
	cmd := exec.CommandContext(ctx, c.Builder[0], append(slices.Clone(c.Builder[1:]), thing)...)
	cmd.Env = append(os.Environ(), "FASTIOV_CACHE="+c.dir)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, progress, lastWords
	if err := run(cmd); err != nil {
		c.sweep()
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", progress.because(thing, err)
	}
	var built Built
	if err := json.Unmarshal(out.Bytes(), &built); err != nil {
		return "", fmt.Errorf("image %s: its builder said %q: %w", thing, out.String(), err)
	}
	c.CountFetched("debian", built.Fetched)
	return built.Dir, nil
}

// run runs a builder to its end. As root, the builder is process 1 of a namespace, so all that it
// has started ends with it. It ends with the thread that started it, so this goroutine keeps the
// thread until then.
func run(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		_ = unix.Setpriority(unix.PRIO_PGRP, cmd.Process.Pid, max(niceOf(own), builderNice))
	}
	return cmd.Wait()
}

// niceOf reads what the system call getpriority returns.
func niceOf(priority int) int { return 20 - priority }

// progress reads what a builder writes to its standard error, and passes it on.
type progress struct {
	to    io.Writer
	doing func(string)
	rest  []byte
	last  string // line that tells no step
}

func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.rest = rest
		if name, text, step := stepIn(string(line)); step {
			p.doing(fmt.Sprintf("builds %s: %s", name, text))
		} else {
			p.last = string(line)
		}
		fmt.Fprintf(p.to, "%s\n", line) // a log that is full ends no build
	}
}

// because returns why a builder ended as it did.
func (p *progress) because(thing string, ended error) error {
	var exit *exec.ExitError
	if errors.As(ended, &exit) && exit.Exited() && p.last != "" {
		return errors.New(strings.TrimPrefix(p.last, "fastiov: "))
	}
	return fmt.Errorf("image %s: its builder ended: %w", thing, ended)
}
