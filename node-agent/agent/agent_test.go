package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// vfs is a pool of one VF.
type vfs struct {
	mu       sync.Mutex
	lease    *vf.Lease
	found    []vf.Lease
	returned []vf.Lease
	faults   []string
	news     chan []vf.News
}

func (v *vfs) Lease(owner vf.Owner, _ vf.Want) (vf.Lease, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lease != nil {
		return vf.Lease{}, vf.ErrEmpty
	}
	v.lease = &vf.Lease{BDF: "0000:01:10.0", Owner: owner}
	return *v.lease, nil
}

func (v *vfs) Return(l vf.Lease) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lease = nil
	v.returned = append(v.returned, l)
}

func (v *vfs) SetOwner(vf.Lease, vf.Owner) error { return nil }

func (v *vfs) Snapshot() []vf.Status { return []vf.Status{{BDF: "0000:01:10.0", State: vf.Idle}} }
func (v *vfs) Leases() []vf.Lease {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.found
}

// Watch yields the news sent to v.
func (v *vfs) Watch(ctx context.Context) iter.Seq[[]vf.News] {
	return func(yield func([]vf.News) bool) {
		for {
			select {
			case news := <-v.news:
				if !yield(news) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// lose takes the VF of a sandbox away.
func lose(a *Agent, id string) {
	a.lost(vf.Status{Owner: vf.Owner{Kind: vf.Sandbox, Name: id}, Lost: "gone"})
}

func (v *vfs) Fault(_, why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faults = append(v.faults, why)
}

// driver starts boxes; a start blocks while hold is open.
type driver struct {
	mu      sync.Mutex
	hold    chan struct{}
	adopts  map[string]bool
	ended   []string
	boxes   map[string]*box
	opened  chan struct{} // of its boxes
	initial int           // status of /init
	dial    func(port int) (net.Conn, error)

	initializing func()                               // while /init is about to be sent
	adopting     func(ctx context.Context, id string) // during Adopt
	ending       func(id string)                      // during End
}

func (d *driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	if err := owned(sandbox.Record{Spec: spec, PID: 1}); err != nil {
		return nil, err
	}
	if d.hold != nil {
		select {
		case <-d.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return d.box(spec.ID), nil
}

func (d *driver) box(id string) *box {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &box{done: make(chan struct{}), initial: d.initial, initializing: d.initializing,
		logs: tail.New(), dial: d.dial, opened: d.opened}
	d.boxes[id] = b
	return b
}

func (d *driver) Adopt(ctx context.Context, rec sandbox.Record) (sandbox.Sandbox, error) {
	if d.adopting != nil {
		d.adopting(ctx, rec.Spec.ID)
	}
	if !d.adopts[rec.Spec.ID] {
		return nil, cmp.Or(context.Cause(ctx), errors.New("it does not answer"))
	}
	return d.box(rec.Spec.ID), nil
}

func (d *driver) End(spec sandbox.Spec) {
	if d.ending != nil {
		d.ending(spec.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, spec.ID)
}

func (d *driver) Leftovers(map[string]bool) []string { return nil }

type box struct {
	once    sync.Once
	done    chan struct{}
	err     error
	initial int
	broken  error                            // of every Dial
	hangsUp bool                             // on every request
	dial    func(port int) (net.Conn, error) // in place of the runtime
	closes  atomic.Int32
	logs    *tail.Log
	gate    *timeline.Gate // nil: none
	opened  chan struct{}
	noPause error
	dies    error // of which it ends at the next request

	initializing func()
}

func (b *box) Gate() (timeline.Gate, bool) {
	if b.gate == nil {
		return timeline.Gate{}, false
	}
	return *b.gate, true
}

func (b *box) Opened() <-chan struct{} { return b.opened }

func (b *box) Dial(_ context.Context, port int) (net.Conn, error) {
	switch {
	case b.broken != nil:
		return nil, b.broken
	case b.dial != nil:
		return b.dial(port)
	}
	ours, _ := net.Pipe() // to one that says nothing, as long as the box is there
	go func() {
		<-b.done
		ours.Close()
	}()
	return ours, nil
}

// Post implements openwhisk.Direct: it answers a request as a runtime does, and logs a line.
func (b *box) Post(
	_ context.Context, path string, _ []byte, _ time.Time,
) (int, []byte, error) {
	switch {
	case b.broken != nil:
		err := fmt.Errorf("%w: %w", sandbox.ErrUnreached, b.broken)
		return 0, nil, fmt.Errorf("runtime %s: %w", path, err)
	case b.dies != nil:
		b.end(b.dies)
		return 0, nil, io.ErrUnexpectedEOF
	case b.hangsUp:
		return 0, nil, io.ErrUnexpectedEOF
	}
	status, answer := 200, `{"path":"`+path+`"}`
	if path == "/init" {
		if b.initializing != nil {
			b.initializing()
		}
		if b.initial != 0 {
			status, answer = b.initial, "{}"
		}
	}
	b.logs.Add(wire.LogLine{Stream: "stdout", Text: "line"})
	for _, stream := range []string{"stdout", "stderr"} {
		b.logs.Add(wire.LogLine{Stream: stream, Text: openwhisk.Sentinel})
	}
	return status, []byte(answer), nil
}

func (b *box) Logs() *tail.Log              { return b.logs }
func (b *box) Pause(context.Context) error  { return b.noPause }
func (b *box) Resume(context.Context) error { return nil }
func (b *box) Done() <-chan struct{}        { return b.done }
func (b *box) Err() error                   { return b.err }
func (b *box) Close() {
	b.closes.Add(1)
	b.end(nil)
}
func (b *box) end(err error) {
	b.once.Do(func() {
		b.err = err
		b.logs.End()
		close(b.done)
	})
}

type images struct{}

func (images) Root(context.Context, string, string) (startup.Root, error) {
	return startup.Root{}, nil
}
func (images) Hold(context.Context, string) (func(), error) { return nil, nil }

func newAgent(t testing.TB) (*Agent, *driver, *vfs) {
	t.Helper()
	d, v := &driver{boxes: map[string]*box{}, adopts: map[string]bool{}}, &vfs{}
	starter := &startup.Starter{
		RunDir: t.TempDir(), Driver: d, Images: images{},
		Admission: startup.NewAdmission(1000, netvf.Path{Pool: v}),
		Network: startup.Network{
			Subnet: netip.MustParsePrefix("10.0.2.0/24"), First: netip.MustParseAddr("10.0.2.100"),
		},
		Reports: &startup.Reports{Dir: t.TempDir(), Keep: 1}, Log: slog.New(slog.DiscardHandler),
	}
	return New(Config{
		Version: "test", Driver: "fake", Starter: starter, VFs: v,
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: starter.Log,
	}), d, v
}

func start(t *testing.T, a *Agent, id string) (*api.StartReply, error) {
	return a.Start(t.Context(), &api.StartRequest{Id: id, MemoryMib: 128, Init: []byte("{}")})
}

func TestALife(t *testing.T) {
	a, _, v := newAgent(t)
	reply, err := start(t, a, "x")
	if err != nil || reply.InitStatus != 200 || reply.Address != "10.0.2.100" ||
		reply.Driver != "fake" {
		t.Fatalf("%+v, %v", reply, err)
	}
	run, err := a.Run(t.Context(), &api.RunRequest{Id: "x", Body: []byte("{}"), TimeoutMs: 60_000})
	if err != nil || string(run.Body) != `{"path":"/run"}` || len(run.Logs) != 1 ||
		run.EndNs < run.BeginNs {
		t.Errorf("%+v, %v", run, err)
	}
	a.Cache = func() (int64, int64) { return 3 << 20, 8 << 30 }
	st, _ := a.Status(t.Context(), &api.StatusRequest{})
	if st.CacheMib != 3 || st.CacheLimitMib != 8192 {
		t.Errorf("its cache holds %d of %d MiB", st.CacheMib, st.CacheLimitMib)
	}
	if len(st.Sandboxes) != 1 || st.Sandboxes[0].Vf != "0000:01:10.0" ||
		st.MemoryReservedMib != 128 {
		t.Errorf("%+v", st)
	}
	for range 2 { // stopping is done when it returns, and may be done twice
		if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	st, _ = a.Status(t.Context(), &api.StatusRequest{})
	if len(st.Sandboxes) != 0 || st.MemoryReservedMib != 0 || len(v.returned) != 1 ||
		len(st.Leftovers) != 0 {
		t.Errorf("%+v, returned %v", st, v.returned)
	}
	if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("run in a sandbox that has gone: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	a, d, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id     string
		memory uint32
		want   codes.Code
	}{
		{"x", 128, codes.AlreadyExists},
		{"y", 128, codes.ResourceExhausted},
		{"../etc", 128, codes.InvalidArgument},
		{"", 128, codes.InvalidArgument},
		{"y", 1, codes.InvalidArgument},
		{"y", 100_000, codes.ResourceExhausted},
	} {
		if _, err := a.Start(t.Context(), &api.StartRequest{Id: c.id,
			MemoryMib: c.memory}); status.Code(err) != c.want {
			t.Errorf("start %q with %d MiB: %v, want %v", c.id, c.memory, err, c.want)
		}
	}
	d.boxes["x"].Close()
}

func TestAFunctionThatFailsItsInitIsStopped(t *testing.T) {
	a, d, v := newAgent(t)
	d.initial = 502
	reply, err := start(t, a, "x")
	if err != nil || reply.InitStatus != 502 || len(reply.Logs) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if _, err := a.find(t.Context(), "x"); len(v.returned) != 1 || err == nil {
		t.Error("it still holds its VF")
	}
}

func TestASandboxThatDiesGivesBackItsVF(t *testing.T) {
	for _, cause := range []error{errors.New("killed"), &sandbox.NICFault{Why: "AER"}} {
		a, d, v := newAgent(t)
		if _, err := start(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		d.boxes["x"].end(cause)
		waitGone(a)
		if len(v.returned) != 1 {
			t.Errorf("%v: returned %v", cause, v.returned)
		}
		list, err := a.Report(t.Context(), &api.ReportRequest{})
		if err != nil || len(list.Kept) != 1 || list.Kept[0].Id != "x" ||
			list.Kept[0].Why != cause.Error() {
			t.Errorf("%v: its reports are %v, %v", cause, list, err)
		}
		if report, err := a.Report(t.Context(), &api.ReportRequest{Id: "x"}); err != nil ||
			len(report.TarGz) == 0 {
			t.Errorf("%v: its report: %v", cause, err)
		}
		if fault := errors.As(cause, new(*sandbox.NICFault)); fault != (len(v.faults) == 1) {
			t.Errorf("%v: faults %v", cause, v.faults)
		}
	}
}

// When the agent closes, its driver lets go of sandboxes that live on. Their records and leases are
// for the next agent.
func TestASandboxThatIsLetGoKeepsItsVF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, v := newAgent(t)
		if _, err := start(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		d.boxes["x"].end(sandbox.ErrLetGo)
		synctest.Wait()
		if _, err := os.Stat(a.Starter.Dir("x")); err != nil || len(v.returned) != 0 {
			t.Errorf("%v, returned %v", err, v.returned)
		}
	})
}

func waitGone(a *Agent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.sandboxes) > 0 {
		a.changed.Wait()
	}
}

// A sandbox takes a while to end. A call that is sent to it meanwhile has not run, and can run
// elsewhere.
func TestASandboxThatEndsTakesNoCalls(t *testing.T) {
	a, _, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	defer a.Stop(t.Context(), &api.StopRequest{Id: "x"})
	become := func(state string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sandboxes["x"].become(state, "it lost its VF")
	}
	become(ending)
	defer become(ready)
	_, err := a.Run(t.Context(), &api.RunRequest{Id: "x"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "it lost its VF") {
		t.Errorf("a run in a sandbox that ends: %v", err)
	}
}

func TestALostVFEndsItsSandbox(t *testing.T) {
	a, _, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	lose(a, "x")
	waitGone(a)
}

func TestStopEndsAStart(t *testing.T) {
	a, d, v := newAgent(t)
	d.hold = make(chan struct{})
	failed := make(chan error)
	go func() { _, err := start(t, a, "x"); failed <- err }()
	for a.knows("x") == false {
		time.Sleep(time.Millisecond)
	}
	if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Errorf("the start ended with %v", err)
	}
	if v.lease != nil {
		t.Error("its VF was not returned")
	}
}

func (a *Agent) knows(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sandboxes[id] != nil
}

func TestDrain(t *testing.T) {
	a, _, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.Drain(ctx, &api.DrainRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("draining a busy node for a moment: %v", err)
	}
	if _, err := start(t, a, "y"); status.Code(err) != codes.Unavailable {
		t.Errorf("start on a draining node: %v", err)
	}
	reply, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true})
	if err != nil || reply.Stopped != 1 {
		t.Errorf("%+v, %v", reply, err)
	}
	if _, err := a.Drain(t.Context(), &api.DrainRequest{Undo: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, a, "y"); err != nil {
		t.Errorf("start after the drain was undone: %v", err)
	}
	_, _ = a.Stop(t.Context(), &api.StopRequest{Id: "y"})
}

// TestAdopt goes through what a crash can leave: each sandbox is taken over or ended, each lease
// kept or returned.
func TestAdopt(t *testing.T) {
	const bdf = "0000:01:10.0"
	early := vf.Lease{BDF: bdf, Owner: vf.Owner{Kind: vf.Sandbox, Name: "x"}}
	lease := early
	lease.Owner.PID = 1
	record := func(bdf string) *sandbox.Record {
		nic := &sandbox.NIC{PCI: &sandbox.PCI{BDF: bdf}}
		return &sandbox.Record{Spec: sandbox.Spec{ID: "x", MemoryMiB: 128, NIC: nic}, PID: 1}
	}
	for _, c := range []struct {
		name    string
		record  *sandbox.Record // nil: a run directory without one
		noDir   bool
		found   []vf.Lease
		answers bool
		adopted bool
		back    int
	}{
		{"all agree", record(bdf), false, []vf.Lease{lease}, true, true, 0},
		{"it does not answer", record(bdf), false, []vf.Lease{lease}, false, false, 1},
		{"its lease has ended", record(bdf), false, nil, true, false, 0},
		{"another VF in the journal", record("0000:01:10.2"), false, []vf.Lease{lease}, true, false, 1},
		{"the journal names no process", record(bdf), false, []vf.Lease{early}, true, false, 1},
		{"killed before its record", nil, false, []vf.Lease{lease}, true, false, 1},
		{"killed before its directory", nil, true, []vf.Lease{lease}, true, false, 1},
		{"a journal entry that could not be read", record(bdf), false, []vf.Lease{{BDF: bdf}}, true, false, 1},
		{"its VF has gone", record(bdf), false, []vf.Lease{{BDF: bdf, Owner: lease.Owner, Gone: true}}, true, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, d, v := newAgent(t)
			v.found, d.adopts["x"] = c.found, c.answers
			dir := a.Starter.Dir("x")
			if !c.noDir {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if c.record != nil {
				c.record.Spec.Dir = dir
				if err := startup.WriteRecord(*c.record); err != nil {
					t.Fatal(err)
				}
			}
			adopted, _ := a.Adopt(t.Context())()
			if (adopted == 1) != c.adopted || len(v.returned) != c.back {
				t.Errorf("%d adopted, returned %v", adopted, v.returned)
			}
			if c.adopted {
				if used, _, _ := a.Starter.Admission.Usage(); used != 128 {
					t.Errorf("an adopted sandbox accounts for %d MiB", used)
				}
				_, _ = a.Stop(t.Context(), &api.StopRequest{Id: "x"})
				return
			}
			if !slices.Contains(d.ended, "x") {
				t.Error("it was not ended")
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("its directory is still there")
			}
		})
	}
}

// unpulled lists images that a registry refuses.
type unpulled struct {
	images
	reason oci.Reason
}

func (u unpulled) Root(context.Context, string, string) (startup.Root, error) {
	return startup.Root{}, &oci.Refusal{
		Image: "x/y:1", Reason: u.reason, Err: errors.New(
			"GET https://10.0.0.1/v2/ of the operator"),
	}
}

// TestARegistryThatIsAwayIsNoFaultOfTheAction: nor is it one of the node, which is not taken out.
func TestARegistryThatIsAwayIsNoFaultOfTheAction(t *testing.T) {
	for _, reason := range oci.Reasons {
		a, _, _ := newAgent(t)
		a.Starter.Images = unpulled{reason: reason}
		want := codes.InvalidArgument
		if reason == oci.Late || reason == oci.Unreachable {
			want = codes.Aborted
		}
		if _, err := start(t, a, "x"); status.Code(err) != want {
			t.Errorf("%s: %v, want %s", reason, err, want)
		}
	}
}

func TestCallersHearNoMoreThanWhyAnImageWasRefused(t *testing.T) {
	a, _, v := newAgent(t)
	a.Starter.Images = unpulled{reason: oci.NotFound}
	_, err := start(t, a, "x")
	const terse = "the image x/y:1 could not be pulled: not found"
	if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != terse {
		t.Errorf("the caller hears %v", err)
	}
	if starts, _ := a.Starts(t.Context(), &api.StartsRequest{}); starts.Starts[0].Why != terse {
		t.Errorf("the live page shows %q", starts.Starts[0].Why)
	}
	report, err := a.Starter.Reports.Read("x")
	if err != nil || len(report) == 0 {
		t.Errorf("the operator finds no report: %v", err)
	}
	if len(v.returned) != 0 {
		t.Errorf("VFs %v were leased", v.returned)
	}
}
