// Package sim makes sandboxes that exist on paper only: no process, no VF, stage times as
// programmed. It shows how everything above the drivers behaves on a machine that can boot nothing.
// It reports simulated times, and every report of them must say so.
package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	web "github.com/fastiov/fastiov/node-agent/runtime/http/echo"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/echo"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

// Config programs the simulation. The zero value is Table1 at a total of DefaultTotal.
type Config struct {
	Stages []Step
	// Wait sleeps for d or until ctx ends; nil is real time. A test puts its own clock here.
	Wait func(ctx context.Context, d time.Duration) error
}

// A Step is one stage and how long it takes.
type Step struct {
	Stage timeline.Stage
	Takes time.Duration
	Alone bool // one start after the other takes it, as under a lock
}

// DefaultTotal is the length of a simulated start.
const DefaultTotal = 500 * time.Millisecond

// Table1 has the proportions of the average start in Table 1 of the FastIOV paper, 200 at once on
// stock software, over the given total. The VMM and the guest share the time that the table leaves
// over, in the order in which they come.
func Table1(total time.Duration) []Step {
	of := func(percent float64) time.Duration {
		return time.Duration(float64(total) * percent / 100)
	}
	return []Step{
		{Stage: timeline.Cgroup, Takes: of(2.9)},
		{Stage: timeline.VMM, Takes: of(3.2)},
		{Stage: timeline.DMARAM, Takes: of(13.0)},
		{Stage: timeline.Virtiofs, Takes: of(13.3)},
		{Stage: timeline.DMAImage, Takes: of(5.6)},
		{Stage: timeline.VFIODev, Takes: of(48.1)},
		{Stage: timeline.GuestBoot, Takes: of(6.0)},
		{Stage: timeline.VFDriver, Takes: of(3.4)},
		{Stage: timeline.Agent, Takes: of(4.5)},
	}
}

// A Driver starts simulated sandboxes.
type Driver struct {
	config Config
	alone  chan struct{} // full while a start takes a step alone
	mu     sync.Mutex
	ids    map[string]bool
}

// New returns a driver.
func New(config Config) *Driver {
	if config.Stages == nil {
		config.Stages = Table1(DefaultTotal)
	}
	if config.Wait == nil {
		config.Wait = wait
	}
	return &Driver{config: config, alone: make(chan struct{}, 1), ids: map[string]bool{}}
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 { // a timer takes its time even for none
		return context.Cause(ctx)
	}
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	if !d.claim(spec.ID) {
		return nil, fmt.Errorf("sandbox %s exists already", spec.ID)
	}
	s := &simulated{Life: life.New(), logs: tail.New(), port: spec.Program.Listens()}
	s.serve = s.serveFunctions
	if spec.Program.Protocol == "http" {
		s.serve = s.serveProgram(spec.Program)
	}
	go func() {
		<-s.Context().Done()
		s.HangUp()
		s.logs.End()
		d.release(spec.ID)
		s.Over(func(cause error) error { return cause })
	}()
	if err := s.Begin(ctx, func() error { return d.boot(ctx, spec, tl, owned) }); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	return s, nil
}

func (d *Driver) boot(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) error {
	if err := owned(sandbox.Record{Spec: spec}); err != nil {
		return err
	}
	for _, step := range d.config.Stages {
		end := tl.Begin(step.Stage)
		err := d.take(ctx, step)
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// take takes one step. A step that is taken alone waits for its turn first.
func (d *Driver) take(ctx context.Context, step Step) error {
	if step.Alone {
		select {
		case d.alone <- struct{}{}:
			defer func() { <-d.alone }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return d.config.Wait(ctx, step.Takes)
}

func (d *Driver) claim(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids[id] {
		return false
	}
	d.ids[id] = true
	return true
}

func (d *Driver) release(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ids, id)
}

// Adopt implements sandbox.Driver: nothing of a simulation outlives its agent.
func (d *Driver) Adopt(_ context.Context, rec sandbox.Record) (sandbox.Sandbox, error) {
	return nil, fmt.Errorf("sandbox %s was simulated and ended with its agent", rec.Spec.ID)
}

// End implements sandbox.Driver.
func (d *Driver) End(sandbox.Spec) {}

// Leftovers implements sandbox.Driver.
func (d *Driver) Leftovers(live map[string]bool) (left []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.ids {
		if !live[id] {
			left = append(left, "simulated sandbox "+id)
		}
	}
	return left
}

// A simulated sandbox.
type simulated struct {
	*life.Life
	logs   *tail.Log
	port   int
	serve  func(net.Conn) // answers on a connection until that ends
	mu     sync.Mutex
	paused bool
}

// serveProgram answers as a program of plain HTTP does.
func (s *simulated) serveProgram(p wire.Program) func(net.Conn) {
	program := &web.Program{Env: p.Env, Mounts: p.Mounts, Log: func(line string) {
		s.logs.Add(wire.LogLine{Time: time.Now(), Stream: "stdout", Text: line})
	}}
	return func(conn net.Conn) { web.Serve(conn, program) }
}

// Pause implements sandbox.Sandbox.
func (s *simulated) Pause(context.Context) error { return s.setPaused(true) }

// Resume implements sandbox.Sandbox.
func (s *simulated) Resume(context.Context) error { return s.setPaused(false) }

func (s *simulated) setPaused(paused bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
	return s.Cause()
}

// Post implements openwhisk.Direct.
func (s *simulated) Post(
	ctx context.Context, path string, body []byte, until time.Time,
) (int, []byte, error) {
	if s.Cause() != nil {
		return 0, nil, errEnded
	}
	status, answer, late := echo.Answer(path, body)
	if late > 0 {
		if err := s.sleep(ctx, late, until); err != nil {
			return 0, nil, err
		}
	}
	if path == "/run" {
		s.ran(status, len(body))
	}
	return status, answer, nil
}

// sleep returns after d, or with the reason why it cannot take so long.
func (s *simulated) sleep(ctx context.Context, d time.Duration, until time.Time) error {
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(s.Context(), func() { end(s.Cause()) })()
	return wait(ended, d)
}

var errEnded = errors.New("the simulated sandbox has ended")

// Dial implements sandbox.Sandbox: the runtime is the only one that listens.
func (s *simulated) Dial(ctx context.Context, port int) (net.Conn, error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case s.Cause() != nil:
		return nil, errEnded
	case port != s.port:
		return nil, fmt.Errorf("nothing listens on port %d of the simulated sandbox", port)
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	go s.serve(theirs)
	return s.Tie(ours), nil
}

// serveFunctions answers as a runtime of OpenWhisk's does.
func (s *simulated) serveFunctions(conn net.Conn) {
	web.Serve(conn, echo.Handler(s.ran))
}

// pair returns the two ends of a connection.
func pair() (net.Conn, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("a connection to the simulated sandbox: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "simulated")
		conn, failed := net.FileConn(file)
		file.Close()
		ends[i], err = conn, errors.Join(err, failed)
	}
	if err != nil {
		for _, end := range ends {
			if end != nil {
				end.Close()
			}
		}
		return nil, nil, fmt.Errorf("a connection to the simulated sandbox: %w", err)
	}
	return ends[0], ends[1], nil
}

// ran logs a run as a runtime does.
func (s *simulated) ran(status, length int) {
	line := wire.LogLine{Time: time.Now(), Stream: "stdout",
		Text: fmt.Sprintf("sim: answered %d to %d bytes", status, length)}
	s.logs.Add(line)
	for _, stream := range [...]string{"stdout", "stderr"} {
		line.Stream, line.Text = stream, openwhisk.Sentinel
		s.logs.Add(line)
	}
}

// Logs implements sandbox.Sandbox.
func (s *simulated) Logs() *tail.Log { return s.logs }
