package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A start that is given up, at whatever moment, leaves nothing.
func TestAStartThatIsGivenUp(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	nic := h.nic(1)
	for n := range 24 {
		spec := sandbox.Spec{ID: fmt.Sprint("given-up-", n), Dir: filepath.Join(t.TempDir(), "box"),
			Root: h.root, Program: h.program(), MemoryMiB: 256, NIC: nic}
		if err := os.Mkdir(spec.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*5*time.Millisecond)
		s, err := d.Start(ctx, spec, &timeline.Timeline{},
			func(sandbox.Record) error { return nil })
		if cancel(); err == nil {
			s.Close()
		}
		if left := d.Leftovers(nil); len(left) > 0 {
			t.Fatalf("given up after %d ms, it leaves %v", n*5, left)
		}
	}
}

// A runc that was killed while it made a container has left its folder, and its program mounted in
// that: both are removed with the sandbox.
func TestARuntimeThatWasKilled(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	left := filepath.Join(d.states(), "killed", "runc.1")
	t.Cleanup(func() { _ = unix.Unmount(left, unix.MNT_DETACH) })
	if err := os.MkdirAll(filepath.Dir(left), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/exe", left, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	d.End(sandbox.Spec{ID: "killed", Dir: t.TempDir()})
}

// A failure is a log in which it is seen that containerd has not ended a sandbox.
type failure chan struct{}

func (f failure) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("containerd has not ended")) {
		select {
		case f <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

// A sandbox that ends while containerd is away is ended when that is back, and so is its shim.
func TestASandboxEndsWhileContainerdIsAway(t *testing.T) {
	h := newHost(t)
	failed := make(failure, 1)
	h.config.Log = slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), failed), nil))
	d := h.open()
	defer d.Close()
	d.endWithin, d.endAgain = 2*time.Second, 100*time.Millisecond
	s, _ := h.start(d, "away", h.program())
	pid := 0
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range processes {
		line, _ := os.ReadFile(file)
		if bytes.Contains(line, []byte(d.daemon.file())) {
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	if pid == 0 {
		t.Fatal("there is no containerd")
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.Close()
	<-failed
	if d.use("away") {
		t.Error("another sandbox may have its name while containerd has not ended it")
	}
	_, err := os.Stat(d.shimSocket("away"))
	if err := errors.Join(err, unix.Kill(pid, unix.SIGCONT)); err != nil {
		t.Errorf("the shim is beyond reach: %v", err)
	}
	for late := time.Now().Add(time.Minute); !d.use("away"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("left over: %v", d.Leftovers(nil))
		}
	}
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	if _, err := os.Stat(d.shimSocket("away")); err == nil {
		t.Error("the shim's socket is left")
	}
}

// A second program runs in a sandbox, as its own does. While one lasts others are made, and one
// that does not come to its turn says so.
func TestASecondProgram(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _ := h.start(d, "second", h.program())
	defer s.Close()
	box := s.(sandbox.Executor)
	exec := func(ctx context.Context, within time.Duration, lasts string) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return box.Exec(ctx, []string{"/program", second, lasts})
	}
	until, leave := context.WithCancel(t.Context())
	var lasting sync.WaitGroup
	for range cap(d.turns) {
		lasting.Go(func() {
			if status, err := exec(until, time.Hour, "1h"); !errors.Is(err, context.Canceled) {
				t.Errorf("one that lasts ends with %d, %v", status, err)
			}
		})
	}
	for late := time.Now().Add(10 * time.Second); len(d.turns) < cap(d.turns); {
		if time.Now().After(late) { // their turns are first
			t.Fatal("those that last are not made")
		}
		time.Sleep(100 * time.Microsecond)
	}
	if status, err := exec(t.Context(), time.Minute, "0s"); status != 3 || err != nil {
		t.Errorf("it ends with %d, %v", status, err)
	}
	leave()
	lasting.Wait()
	var overs []func()
	for range cap(d.turns) {
		over, err := d.turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		overs = append(overs, over)
	}
	if _, err := exec(t.Context(), 50*time.Millisecond, "0s"); !errors.Is(err, sandbox.ErrBusy) {
		t.Errorf("one without a turn: %v", err)
	}
	// A time that others have had of is not the program's.
	late := time.AfterFunc(2*time.Second, overs[0])
	defer late.Stop()
	if _, err := exec(t.Context(), 3*time.Second, "1h"); !errors.Is(err, sandbox.ErrBusy) {
		t.Errorf("one that has waited for its turn: %v", err)
	}
	for _, over := range overs {
		over()
	}
}

// A slow task is about to be paused when it is asked.
type slow struct {
	client.Task
	asked *int
}

func (s slow) Pause(context.Context) error { return errdefs.ErrUnavailable }

func (s slow) Status(ctx context.Context) (client.Status, error) {
	if *s.asked++; *s.asked < 3 {
		return client.Status{Status: client.Pausing}, nil
	}
	if err := s.Task.Pause(ctx); err != nil {
		return client.Status{}, err
	}
	return s.Task.Status(ctx)
}

// A sandbox whose pause takes its time is paused then, and so is resumed.
func TestAPauseThatTakesItsTime(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _ := h.start(d, "slow", h.program())
	defer s.Close()
	b := s.(*box)
	b.task = slow{b.task, new(int)}
	if err := s.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	var is self
	ask(t, s, wire.RuntimePort, &is)
}

// A sandbox whose pause was not answered is known to be paused, and so is resumed.
func TestAPauseWhoseAnswerIsLost(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _ := h.start(d, "paused", h.program())
	defer s.Close()
	b := s.(*box)
	b.task = mute{b.task}
	for range 2 {
		if err := s.Pause(t.Context()); err != nil {
			t.Error(err)
		}
		if status, err := b.task.Status(t.Context()); status.Status != client.Paused {
			t.Fatalf("it is %+v, %v", status, err)
		}
		if err := s.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		var is self
		ask(t, s, wire.RuntimePort, &is)
	}
}

// A program that takes more memory than it has is killed, and the reason is said.
func TestAProgramThatStarves(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _ := h.start(d, "starves", h.program())
	conn, err := s.Dial(t.Context(), wire.RuntimePort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /hoard HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "for want of memory") {
		t.Errorf("%v", err)
	}
}

func TestHandlers(t *testing.T) {
	for handler, name := range map[string]string{
		"runc": runcShim, "crun": runcShim, "/opt/youki": runcShim,
		"runsc": "io.containerd.runsc.v1", "kata": "io.containerd.kata.v2",
		"io.containerd.wasmtime.v1": "io.containerd.wasmtime.v1",
	} {
		if r, err := runtimeOf(handler, "/"); err != nil || r.name != name {
			t.Errorf("%s: %+v, %v", handler, r, err)
		}
	}
	if _, err := runtimeOf("docker", "/"); err == nil || !strings.Contains(err.Error(), "runsc") {
		t.Errorf("%v", err)
	}
}
