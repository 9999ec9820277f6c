package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/client"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// beside returns a sidecar that listens on a port.
func (h *host) beside(name, port string, env ...string) sandbox.Sidecar {
	p := wire.Program{Command: []string{"/program", program}, Env: map[string]string{"PORT": port}}
	for _, e := range env {
		p.Env[e] = "yes"
	}
	return sandbox.Sidecar{Name: name, Root: h.root, Program: p}
}

// startWith starts a sandbox of plain HTTP with sidecars.
func (h *host) startWith(d *Driver, id string, all ...sandbox.Sidecar) (s sandbox.Sandbox,
	rec sandbox.Record, err error) {
	h.Helper()
	p := h.program()
	p.Protocol, p.Mark, p.Env = "http", "", map[string]string{}
	for _, side := range all {
		if side.Program.Env["END"] != "" {
			p.Env["LATE"] = "yes" // so it is not ready before that has ended
		}
	}
	spec := sandbox.Spec{ID: id, Dir: filepath.Join(h.TempDir(), id), Root: h.root, Program: p,
		MemoryMiB: 256, NIC: h.nic(1), Sidecars: all}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		h.Fatal(err)
	}
	s, err = d.Start(h.Context(), spec, &timeline.Timeline{}, func(r sandbox.Record) error {
		rec = r
		return nil
	})
	return s, rec, err
}

// listens waits until a program listens, which nobody probes.
func listens(t *testing.T, s sandbox.Sandbox, port int) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := s.Dial(t.Context(), port)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
}

// end has the program at a port of a sandbox end itself.
func end(t *testing.T, s sandbox.Sandbox, port int) {
	t.Helper()
	listens(t, s, port)
	conn, err := s.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /end HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("the sandbox lives on")
	}
}

// Several programs have one network, bounds and life, and each its own files, processes, variables
// and output. A later agent finds them all.
func TestSidecars(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer func() { d.Close() }()
	first, second := h.beside("first", "9001", "FIRST"), h.beside("second", "9002")
	room := wire.Mount{Path: "/room", Room: 1 << 20, Shared: "room"}
	given := wire.Mount{Path: "/etc/app", Files: []wire.File{
		{Name: "deep/name", Data: []byte("value"), Mode: 0o444}}}
	first.Program.Mounts = []wire.Mount{given, room}
	second.Program.Mounts = []wire.Mount{room}
	s, rec, err := h.startWith(d, "pod", first, second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	all := func() {
		t.Helper()
		for port, of := range map[int]string{8080: "", 9001: "yes", 9002: ""} {
			var is self
			listens(t, s, port)
			ask(t, s, port, &is)
			if is.Env["FIRST"] != of || is.Processes != 1 || is.Env["HOSTNAME"] != "pod" ||
				!strings.Contains(is.Hosts, " pod\n") ||
				!slices.Equal(is.Links, []string{"lo", "eth0"}) {
				t.Errorf("the program at %d is %+v", port, is)
			}
		}
	}
	all()
	for port, want := range map[int]string{8080: "", 9001: "yes", 9002: "yes"} {
		var is self
		if ask(t, s, port, &is); is.Work != want {
			t.Errorf("the program at %d finds %q in /room, want %q", port, is.Work, want)
		}
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, b := range append(s.(*box).sidecars, s.(*box)) {
		if paused, err := b.isPaused(d.named(t.Context())); !paused {
			t.Errorf("%s is not paused, %v", b.spec.ID, err)
		}
	}
	d.Close() // with all of them paused
	d = h.open()
	if left := d.Leftovers(map[string]bool{"pod": true}); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	if s, err = d.Adopt(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	all()
	given.Files[0].Data = []byte("other")
	if err := s.(sandbox.Renewer).Renew("first", []wire.Mount{given, room}); err != nil {
		t.Error(err)
	}
	var is self
	if ask(t, s, 9001, &is); is.Given != "other allowed" {
		t.Errorf("of its renewed file the sidecar says %q", is.Given)
	}
	var written atomic.Bool
	s.(*box).renewing.Lock()
	time.AfterFunc(time.Second, func() {
		written.Store(true)
		s.(*box).renewing.Unlock()
	})
	end(t, s, 9002)
	if !written.Load() {
		t.Error("it was over while a file was being written")
	}
	if err := s.(sandbox.Renewer).Renew("first", []wire.Mount{given, room}); err !=
		sandbox.ErrEnded {
		t.Errorf("renewed after its end: %v", err)
	}
	if why := fmt.Sprint(s.Err()); why !=
		`its sidecar second has ended (exit status 7); its last lines: "the end comes"` {
		t.Errorf("it ended for %s", why)
	}
	if lines := s.Logs().Lines(); !slices.ContainsFunc(lines, func(l wire.LogLine) bool {
		return l.Sidecar == "second" && l.Text == "the end comes"
	}) {
		t.Errorf("its log is %v", lines)
	}
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// A sandbox of several programs is ended whole: one that is paused, one that a former agent has
// left, with or without what its record says, and by Clear.
func TestSidecarsEndWithTheirs(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer func() { d.Close() }()
	s, _, err := h.startWith(d, "paused", h.beside("side", "9001"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > killWithin {
		t.Errorf("its end takes %s", took)
	}
	for id, of := range map[string]func(sandbox.Spec){
		"left":  func(s sandbox.Spec) { d.End(s) },
		"alone": func(s sandbox.Spec) { d.End(sandbox.Spec{ID: s.ID, Dir: s.Dir}) },
		"clear": func(sandbox.Spec) {
			d.Close()
			if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
				t.Error(err)
			}
			d = h.open()
		},
	} {
		_, rec, err := h.startWith(d, id, h.beside("side", "9001"))
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		d = h.open()
		of(rec.Spec)
		if left := d.Leftovers(nil); len(left) > 0 {
			t.Errorf("%s: left over: %v", id, left)
		}
	}
}

// A turnstile is a task that pauses and resumes once another one does.
type turnstile struct {
	client.Task
	meets *sync.WaitGroup
}

func (m turnstile) meet(ctx context.Context, then func(context.Context) error) error {
	m.meets.Done()
	met := make(chan struct{})
	go func() {
		m.meets.Wait()
		close(met)
	}()
	select {
	case <-met:
		return then(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m turnstile) Pause(ctx context.Context) error  { return m.meet(ctx, m.Task.Pause) }
func (m turnstile) Resume(ctx context.Context) error { return m.meet(ctx, m.Task.Resume) }

// No program waits for another one to be paused or resumed.
func TestSidecarsArePausedSideBySide(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _, err := h.startWith(d, "both", h.beside("side", "9001"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := s.(*box)
	for _, step := range []func(context.Context) error{s.Pause, s.Resume} {
		var meets sync.WaitGroup
		meets.Add(2)
		for _, p := range []*box{b, b.sidecars[0]} {
			if former, again := p.task.(turnstile); again {
				p.task = former.Task
			}
			p.task = turnstile{p.task, &meets}
		}
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, port := range []int{8080, 9001} {
		var is self
		listens(t, s, port)
		ask(t, s, port, &is)
	}
}

// A refusing task cannot be paused.
type refusing struct{ client.Task }

func (refusing) Pause(context.Context) error { return errors.New("refused") }

// A hanging task is paused, unless its sandbox ends first.
type hanging struct {
	client.Task
	sandbox *box
	ended   chan<- bool
}

func (h hanging) Pause(ctx context.Context) error {
	select {
	case <-h.sandbox.Context().Done():
		h.ended <- true
	case <-ctx.Done():
		h.ended <- false
	}
	return ctx.Err()
}

// A sandbox one of whose programs cannot be paused ends before the others are.
func TestASandboxThatIsHalfPausedEndsAtOnce(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _, err := h.startWith(d, "both", h.beside("side", "9001"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, ended := s.(*box), make(chan bool, 1)
	b.task = hanging{b.task, b, ended}
	b.sidecars[0].task = refusing{b.sidecars[0].task}
	if err := s.Pause(t.Context()); err == nil {
		t.Error("it is paused")
	}
	if !<-ended {
		t.Error("its end waited for the program that hung")
	}
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "the sidecar side: refused") {
		t.Errorf("it ended with %v", err)
	}
}

// A daemon that does not clean up is waited for as long as who ends a sandbox has time.
func TestADaemonThatDoesNotCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{dir: t.TempDir(), log: slog.New(slog.DiscardHandler)}
		if err := os.MkdirAll(filepath.Join(bundlesDir(d.dir, "test"), "one"), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		d.await(ctx, "test", "one")
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it is waited for %v", waited)
		}
	})
}

// The output of no program waits for the end of another's.
func TestSidecarsAreShutSideBySide(t *testing.T) {
	var meets sync.WaitGroup
	program := func() *box {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p := &box{pipes: []io.Closer{writer, reader}, logs: tail.New()}
		meets.Add(1)
		p.output.Go(func() {
			_, _ = io.Copy(io.Discard, reader)
			meets.Done()
			meets.Wait()
		})
		return p
	}
	b := program()
	b.sidecars = []*box{program(), program()}
	gone := make(chan struct{})
	go func() {
		b.letGo(true)
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("one program's output waits for another's end")
	}
}

// An agent that is killed between a sandbox's record and the start of its programs has started
// nothing: a later one does not take what is made for what serves, and ends it.
func TestWhatWasNotStartedIsNotAdopted(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	later := h.open()
	defer later.Close()
	for id, beside := range map[string][]sandbox.Sidecar{
		"alone": nil, "beside": {h.beside("side", "9001")},
	} {
		spec := sandbox.Spec{ID: id, Dir: filepath.Join(h.TempDir(), id), Root: h.root,
			Program: h.program(), MemoryMiB: 256, NIC: h.nic(1), Sidecars: beside}
		if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := d.Start(t.Context(), spec, &timeline.Timeline{}, func(r sandbox.Record) error {
			if _, err := later.Adopt(t.Context(), r); !errors.Is(err, errNotStarted) {
				t.Errorf("%s: it is adopted with %v", id, err)
			}
			later.End(r.Spec)
			if left := later.Leftovers(nil); len(left) > 0 {
				t.Errorf("%s: left over: %v", id, left)
			}
			return errors.New("killed")
		})
		if err == nil {
			t.Errorf("%s: it is started", id)
		}
	}
}

// A sidecar that ends before the sandbox is ready fails its start, and says how and why. So does
// one that cannot be started.
func TestASidecarThatEnds(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	late := h.beside("late", "9001")
	p := h.beside("brief", "9001", "END")
	none := h.beside("none", "9001")
	none.Program.Command = []string{"/none"}
	for id, of := range map[string]struct {
		side sandbox.Sidecar
		says string
	}{
		"a": {p, `its sidecar brief has ended (exit status 7); its last lines: "the end comes"`},
		"b": {none, "the sidecar none: "},
	} {
		_, _, err := h.startWith(d, id, late, of.side)
		if err == nil || !strings.Contains(err.Error(), of.says) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// The program that serves says how it ended, too, and a function's lines are nobody else's.
func TestLastLines(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _, err := h.startWith(d, "plain")
	if err != nil {
		t.Fatal(err)
	}
	end(t, s, 8080)
	if why := fmt.Sprint(s.Err()); why !=
		`its program has ended (exit status 7); its last lines: "the end comes"` {
		t.Errorf("it ended for %s", why)
	}
	s, _ = h.start(d, "function", h.program())
	end(t, s, wire.RuntimePort)
	if why := fmt.Sprint(s.Err()); why != "its program has ended (exit status 7)" {
		t.Errorf("it ended for %s", why)
	}
}

// Containers that would not share a network are refused.
func TestNoSidecarsWithoutANetworkOfAll(t *testing.T) {
	d := &Driver{runtimes: map[string]runtime{"": {}, "own": {ownStack: true}}}
	if err := d.TakesSidecars(""); err != nil {
		t.Error(err)
	}
	if err := d.TakesSidecars("own"); err == nil || !strings.Contains(err.Error(), "use runc") {
		t.Error(err)
	}
}
