// Package sandboxtest tests the duties of every sandbox.Driver, and runs over each of them.
package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A Subject is a driver under test.
type Subject struct {
	// Open starts the driver, as an agent does when it begins. close does what an agent does when
	// it ends and leaves its sandboxes alone.
	Open func() (d sandbox.Driver, close func(), err error)
	// Spec is the n-th sandbox, n < AtOnce, without ID and Dir.
	Spec     func(n int) sandbox.Spec
	AtOnce   int
	Within   time.Duration // a start, when AtOnce are under way
	Survives bool          // sandboxes outlive their driver
	Log      string        // what a run leaves in the logs, if anything
}

// Init makes a Python runtime answer as package echo does, and log the name it was given.
const Init = `{"value":{"name":"echo","main":"main","binary":false,"code":"def main(args):\n    print('hello', args.get('name'))\n    return args\n"}}`

// Run runs the suite.
func (s Subject) Run(t *testing.T) {
	for name, test := range map[string]func(*bench){
		"starts, answers and closes":             answers,
		"refused by its owner":                   refused,
		"the caller goes away mid-start":         cancelled,
		"an id is used once":                     twice,
		"is dialled":                             dialled,
		"its end ends a connection":              cut,
		"pauses and resumes":                     paused,
		"a paused sandbox closes":                closedPaused,
		"a later agent adopts a paused one":      adoptedPaused,
		"a killed sandbox says so":               killed,
		"a later agent adopts it":                adopted,
		"a later agent ends it":                  ended,
		"what was never started ends in silence": neverStarted,
		"many at once":                           many,
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{T: t, Subject: s, base: t.TempDir()}
			if err := os.Chmod(b.base, 0o755); err != nil {
				t.Fatal(err)
			}
			b.open()
			defer b.clean()
			test(b)
		})
	}
}

// A bench holds one test's driver.
type bench struct {
	*testing.T
	Subject
	base   string
	driver sandbox.Driver
	close  func()
}

func (b *bench) open() {
	b.Helper()
	var err error
	if b.driver, b.close, err = b.Open(); err != nil {
		b.Fatal(err)
	}
}

// clean checks that a test has left nothing behind.
func (b *bench) clean() {
	for _, line := range b.driver.Leftovers(nil) {
		b.Error("left over: ", line)
	}
	_ = filepath.WalkDir(b.base, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type()&os.ModeSocket != 0 {
			b.Error("left over: socket ", path)
		}
		return nil
	})
	b.close()
}

func (b *bench) spec(n int) sandbox.Spec {
	b.Helper()
	spec := b.Spec(n)
	if err := runtime.Prepare(&spec.Program); err != nil {
		b.Fatal(err)
	}
	spec.ID = fmt.Sprintf("t%d-%d", os.Getpid(), n)
	spec.Dir = filepath.Join(b.base, spec.ID)
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		b.Fatal(err)
	}
	return spec
}

func (b *bench) context() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(b.Context(), b.Within,
		errors.New("the test's patience is over"))
}

// start starts the n-th sandbox and returns what its owner learnt.
func (b *bench) start(n int) (s sandbox.Sandbox, rec sandbox.Record, spans []timeline.Span,
	err error) {
	spec := b.spec(n)
	ctx, cancel := b.context()
	defer cancel()
	tl := &timeline.Timeline{}
	s, err = b.driver.Start(ctx, spec, tl, func(r sandbox.Record) error { rec = r; return nil })
	return s, rec, tl.Spans(), err
}

// A box is a sandbox and the runtime in it.
type box struct {
	sandbox.Sandbox
	runtime *openwhisk.Runtime
	process bool // there is one
}

func boxOf(s sandbox.Sandbox, rec sandbox.Record) box {
	return box{s, openwhisk.New(s, wire.RuntimePort, nil), rec.PID != 0}
}

func (b *bench) mustStart(n int) (box, sandbox.Record) {
	b.Helper()
	began := time.Now()
	s, rec, spans, err := b.start(n)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("ready after %v: %s", time.Since(began).Round(time.Millisecond),
		Stages(spans, began, time.Now()))
	if len(spans) == 0 {
		b.Error("a start without stages")
	}
	return boxOf(s, rec), rec
}

// init gives the sandbox its function.
func (b *bench) init(s box) {
	b.Helper()
	ctx, cancel := b.context()
	defer cancel()
	if status, answer, err := s.runtime.Init(ctx, []byte(Init)); err != nil || status != 200 {
		b.Fatalf("/init answered %d %s, %v", status, answer, err)
	}
}

// dial connects to the runtime.
func (b *bench) dial(s box) net.Conn {
	b.Helper()
	ctx, cancel := b.context()
	defer cancel()
	conn, err := s.Dial(ctx, wire.RuntimePort)
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

// echoes checks that the sandbox runs its function.
func (b *bench) echoes(s box, name string) {
	b.Helper()
	ctx, cancel := b.context()
	defer cancel()
	call := fmt.Appendf(nil, `{"value":{"name":%q}}`, name)
	status, answer, err := s.runtime.Run(ctx, call, time.Time{})
	if err != nil {
		b.Fatal(err)
	}
	var got struct{ Name string }
	if err := json.Unmarshal(answer, &got); status != 200 || err != nil || got.Name != name {
		b.Errorf("/run answered %d %s, want 200 and the name %s", status,
			bytes.TrimSpace(answer), name)
	}
	var text []string
	for _, line := range s.runtime.Logs(ctx, time.Time{}) {
		text = append(text, line.Text)
	}
	if logged := strings.Join(text, "\n"); b.Log != "" &&
		logged != strings.ReplaceAll(b.Log, "NAME", name) {
		b.Errorf("logs %q, want %q", logged, b.Log)
	}
}

func (b *bench) closed(s sandbox.Sandbox) {
	b.Helper()
	s.Close()
	s.Close()
	select {
	case <-s.Done():
	default:
		b.Error("not done after Close")
	}
	if err := s.Err(); err != nil {
		b.Errorf("closed by its owner, but Err is %v", err)
	}
}

func answers(b *bench) {
	s, _ := b.mustStart(0)
	b.init(s)
	b.echoes(s, "one")
	b.echoes(s, "two")
	if err := s.Err(); err != nil {
		b.Errorf("Err is %v while it lives", err)
	}
	b.closed(s)
	if conn, err := s.Dial(b.Context(), wire.RuntimePort); err == nil {
		conn.Close()
		b.Error("a closed sandbox is dialled")
	}
	lines := s.Logs().Read()
	_, _, err := lines.Next(b.Context())
	for err == nil {
		_, _, err = lines.Next(b.Context())
	}
	if !errors.Is(err, io.EOF) {
		b.Errorf("the logs of a closed sandbox end with %v", err)
	}
}

const hello = "POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"

// dialled checks the duties of a connection other than the agent's own.
func dialled(b *bench) {
	s, _ := b.mustStart(0)
	defer b.closed(s)
	ctx, cancel := b.context()
	defer cancel()
	if conn, err := s.Dial(ctx, 1); err == nil {
		conn.Close()
		b.Error("a port was dialled where nobody listens")
	}
	conn := b.dial(s)
	defer conn.Close()
	if _, err := io.WriteString(conn, hello); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1"))); err != nil {
		b.Errorf("it answers nothing: %v", err)
	}
	half, can := conn.(interface{ CloseWrite() error })
	if !can {
		b.Fatalf("a %T cannot be closed one way", conn)
	}
	if err := half.CloseWrite(); err != nil {
		b.Error(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		b.Errorf("after one way was closed, the other ends with %v", err)
	}
}

// cut checks that nobody waits for ever on a connection into a sandbox that has ended.
func cut(b *bench) {
	s, _ := b.mustStart(0)
	conn := b.dial(s)
	defer conn.Close()
	read := make(chan error)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	b.closed(s)
	if err := <-read; err == nil || errors.Is(err, io.EOF) {
		b.Errorf("a read ends with %v, and does not say that the sandbox has ended", err)
	}
}

func refused(b *bench) {
	spec := b.spec(0)
	ctx, cancel := b.context()
	defer cancel()
	full := errors.New("the journal is full")
	s, err := b.driver.Start(ctx, spec, &timeline.Timeline{}, func(rec sandbox.Record) error {
		if rec.Spec.ID != spec.ID || rec.PID != 0 && rec.StartTicks == 0 {
			b.Errorf("record %+v does not name the sandbox", rec)
		}
		return full
	})
	if s != nil || !errors.Is(err, full) {
		b.Errorf("%v, %v; want the owner's error", s, err)
	}
}

func cancelled(b *bench) {
	spec := b.spec(0)
	left := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(b.Context())
	s, err := b.driver.Start(ctx, spec, &timeline.Timeline{}, func(sandbox.Record) error {
		cancel(left)
		return nil
	})
	if s != nil || !errors.Is(err, left) {
		b.Errorf("%v, %v; want %v", s, err, left)
	}
	if left := b.driver.Leftovers(nil); len(left) != 0 {
		b.Errorf("left over: %v", left)
	}
	again, _ := b.mustStart(0)
	b.closed(again)
}

func twice(b *bench) {
	s, _ := b.mustStart(0)
	defer b.closed(s)
	if second, _, _, err := b.start(0); err == nil {
		second.Close()
		b.Error("a second sandbox with the same id was started")
	}
	b.init(s)
	b.echoes(s, "still there")
}

func paused(b *bench) {
	s, _ := b.mustStart(0)
	defer b.closed(s)
	b.init(s)
	b.echoes(s, "before")
	b.resume(s) // It was not paused, so this does nothing.
	for range 2 {
		b.pause(s)
		b.pause(s)
		b.resume(s)
		b.echoes(s, "after")
	}
}

// pause also checks that a paused sandbox answers nobody.
func (b *bench) pause(s box) {
	b.Helper()
	ctx, cancel := b.context()
	defer cancel()
	if err := s.Pause(ctx); err != nil {
		b.Fatal(err)
	}
	if !s.process { // nothing is there that could fail to answer
		return
	}
	ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	conn, err := s.Dial(ctx, wire.RuntimePort)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = io.WriteString(conn, hello)
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		b.Errorf("a paused sandbox answers %d bytes", n)
	}
}

func (b *bench) resume(s sandbox.Sandbox) {
	b.Helper()
	ctx, cancel := b.context()
	defer cancel()
	if err := s.Resume(ctx); err != nil {
		b.Fatal(err)
	}
}

func closedPaused(b *bench) {
	s, _ := b.mustStart(0)
	b.pause(s)
	b.closed(s)
	if s.Pause(b.Context()) == nil || s.Resume(b.Context()) == nil {
		b.Error("a sandbox that has ended is paused and resumed")
	}
}

// adopts adopts a sandbox, which then answers, and closes it.
func (b *bench) adopts(rec sandbox.Record) {
	ctx, cancel := b.context()
	defer cancel()
	a, err := b.driver.Adopt(ctx, rec)
	if err != nil {
		b.driver.End(rec.Spec)
		b.Fatal(err)
	}
	b.echoes(boxOf(a, rec), "adopted")
	b.closed(a)
}

func adoptedPaused(b *bench) {
	s, rec := b.mustStart(0)
	if !b.Survives {
		b.closed(s)
		return
	}
	b.init(s)
	b.pause(s)
	b.close()
	b.open()
	b.adopts(rec)
}

func killed(b *bench) {
	s, rec := b.mustStart(0)
	if rec.PID == 0 {
		b.closed(s)
		b.Skip("there is no process to kill")
	}
	if err := syscall.Kill(rec.PID, syscall.SIGKILL); err != nil {
		b.Fatal(err)
	}
	<-s.Done()
	if s.Err() == nil {
		b.Error("killed, but Err is nil")
	}
	s.Close()
}

func adopted(b *bench) {
	s, rec := b.mustStart(0)
	if !b.Survives {
		if _, err := b.driver.Adopt(b.Context(), rec); err == nil {
			b.Error("adopted what cannot survive")
		}
		b.closed(s)
		return
	}
	b.init(s)
	b.close()
	b.open()
	wrong := rec
	wrong.StartTicks++
	if _, err := b.driver.Adopt(b.Context(), wrong); err == nil {
		b.Error("adopted a process that started at another time")
	}
	leaving, leave := context.WithCancelCause(b.Context())
	leave(sandbox.ErrLetGo)
	if _, err := b.driver.Adopt(leaving, rec); !errors.Is(err, sandbox.ErrLetGo) {
		b.Errorf("an agent that ends while it adopts: %v; it leaves the sandbox to a later one",
			err)
	}
	b.adopts(rec)
}

func ended(b *bench) {
	s, rec := b.mustStart(0)
	if !b.Survives {
		b.closed(s)
		return
	}
	b.close()
	b.open()
	if left := b.driver.Leftovers(nil); len(left) == 0 {
		b.Error("an abandoned sandbox is not called left over")
	}
	if left := b.driver.Leftovers(map[string]bool{rec.Spec.ID: true}); len(left) != 0 {
		b.Errorf("a live sandbox is called left over: %v", left)
	}
	b.driver.End(rec.Spec)
	b.driver.End(rec.Spec)
	if _, err := b.driver.Adopt(b.Context(), rec); err == nil {
		b.Error("adopted what was ended")
	}
}

func neverStarted(b *bench) { b.driver.End(b.spec(0)) }

func many(b *bench) {
	var all sync.WaitGroup
	began := time.Now()
	for n := range b.AtOnce {
		all.Go(func() {
			s, rec, spans, err := b.start(n)
			if err != nil {
				b.Error(err)
				return
			}
			ready := time.Now()
			b.Logf("sandbox %d ready after %v: %s", n, ready.Sub(began).Round(time.Millisecond),
				Stages(spans, began, ready))
			box := boxOf(s, rec)
			b.init(box)
			b.echoes(box, fmt.Sprint("number ", n))
			b.closed(s)
		})
	}
	all.Wait()
}

// Stages returns on one line how the time between begin and end was spent.
func Stages(spans []timeline.Span, begin, end time.Time) string {
	var line strings.Builder
	shares := timeline.Attribute(spans, begin, end)
	for _, stage := range timeline.Order {
		if share := shares[stage]; share > 0 {
			fmt.Fprintf(&line, "%s %v  ", stage, share.Round(time.Millisecond))
		}
	}
	return strings.TrimSpace(line.String())
}
