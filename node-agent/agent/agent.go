package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	"github.com/fastiov/fastiov/node-agent/runtime"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// VFs holds the calls of the VF pool that the agent needs beside startup.NetPath.
type VFs interface {
	Lease(vf.Owner, vf.Want) (vf.Lease, error)
	Return(vf.Lease)
	Leases() []vf.Lease
	Snapshot() []vf.Status
	Watch(context.Context) iter.Seq[[]vf.News]
}

// Config holds the parts that an Agent is made of.
type Config struct {
	Version string
	Driver  string // its name, as reported
	// FastIOV names the set of FastIOV's ways to start a VM that is switched on, as reported;
	// "none" if empty.
	FastIOV string
	// GuestKernel is the release of the kernel of guests, as reported; "" where there is none.
	GuestKernel string
	Starter     *startup.Starter
	VFs         VFs  // nil on a node without VFs
	Netdevs     bool // sandboxes have VFs as network interfaces
	// Images returns the runtime images that are here; nil if no image is needed.
	Images func() []string
	Cache  func() (holds, limit int64) // bytes of images; nil where there is no cache
	// Express returns what the express path of the bridge does; nil where there is none.
	Express func() (scon.State, error)
	Metrics *Metrics
	Log     *slog.Logger

	// Building says what is being done to make an image that starts wait for, or "" if nothing is.
	// It is nil if no image is needed.
	Building func(image string) string
}

// An Agent serves the node API.
type Agent struct {
	api.UnimplementedNodeServer
	Config
	starts               starts
	ends                 ends
	connections, readers atomic.Int64 // of sandboxes, and of their logs

	mu        sync.Mutex
	sandboxes map[string]*entry
	draining  bool
	undone    uint64 // how often drains were undone
	health    *health.Server
	changed   *sync.Cond // a sandbox has gone or is adopted, or a drain is undone
}

type entry struct {
	state   string
	since   time.Time // it is in that state
	reason  string    // it is ending
	failed  bool      // nobody has asked for its end
	image   string
	started time.Time
	adopted bool
	spec    sandbox.Spec // while starting, its zero value
	pid     int
	st      *startup.Started   // nil while starting or being adopted
	cold    *coldStart         // until it has answered the call it was started for
	cancel  context.CancelFunc // ends its start or its adoption
}

// The states of a sandbox, as Status reports them.
const (
	starting = "starting"
	adopting = "adopting"
	ready    = "ready"
	paused   = "paused"
	ending   = "ending"
)

// States lists all of them.
var States = []string{starting, adopting, ready, paused, ending}

func (e *entry) become(state, reason string) {
	e.state, e.since, e.reason = state, time.Now(), reason
}

// New returns an agent that knows of no sandboxes; call Adopt before serving it.
func New(cfg Config) *Agent {
	cfg.FastIOV = cmp.Or(cfg.FastIOV, "none")
	a := &Agent{Config: cfg, sandboxes: map[string]*entry{}, health: health.NewServer()}
	a.changed = sync.NewCond(&a.mu)
	_, err := os.Stat(a.drainFile())
	a.drain(err == nil)
	return a
}

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// Start implements api.NodeServer.
func (a *Agent) Start(ctx context.Context, req *api.StartRequest) (*api.StartReply, error) {
	if !validID.MatchString(req.Id) {
		return nil, status.Errorf(codes.InvalidArgument,
			"sandbox id %q: want 1 to 40 of a-z, 0-9 and -, not beginning with -", req.Id)
	}
	if least := 64 + limits.SidecarMiB*len(req.Sidecars); int(req.MemoryMib) < least {
		return nil, status.Errorf(codes.InvalidArgument,
			"sandbox %s: memory of %d MiB; it needs at least %d, 16 of them for each sidecar",
			req.Id, req.MemoryMib, least)
	}
	err := runtime.Prepare(&wire.Program{Protocol: req.Protocol})
	if err == nil && req.Port > 65535 {
		err = fmt.Errorf("port %d: want 1 to 65535", req.Port)
	}
	if err == nil && req.User != "" {
		err = startup.ParseUser(req.User, &wire.Program{})
	}
	if err == nil && req.Handler != "" {
		err = a.offers(req.Handler)
	}
	mounts := mountsOf(req.Mounts)
	if err == nil {
		err = wire.CheckMounts(mounts)
	}
	var sidecars []startup.Sidecar
	if err == nil && len(req.Sidecars) > 0 {
		sidecars, err = a.sidecars(req)
	}
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox %s: %v", req.Id, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &entry{image: req.Image, started: time.Now(), cancel: cancel}
	e.become(starting, "")
	if err := a.enter(req.Id, e); err != nil {
		return nil, err
	}
	cold := a.starts.begin(req.Id, req.Call)
	cold.boots = true
	st, err := a.Starter.Start(ctx, startup.Request{
		ID: req.Id, Image: req.Image, Namespace: req.Namespace, Init: req.Init,
		MemoryMiB: int(req.MemoryMib),
		Wait:      time.Duration(req.WaitMs) * time.Millisecond, Env: req.Env,
		Timeline: &cold.Timeline,
		Protocol: req.Protocol, Port: uint16(req.Port), Probe: req.Probe,
		ProbedBy: req.ProbeCommand,
		CPU:      sandbox.CPU{Request: int(req.CpuRequest), Limit: int(req.CpuLimit)},
		Command:  req.Command, Args: req.Args, Dir: req.Dir, User: req.User,
		Handler: req.Handler, Mounts: mounts, Sidecars: sidecars,
	})
	if err != nil {
		cold.failed(err)
		a.leave(req.Id, err)
		a.Metrics.startFailed(err)
		return nil, grpcError(req.Id, err)
	}
	a.Metrics.started(a.how(st), st.Spans)
	go a.measureNIC(st)
	reply := a.startReply(req.Id, st)
	cold.ready(reply.Nic)
	if st.InitStatus != 200 {
		cold.failed(badInit(st.InitStatus))
		reply.Logs = refusalLogs(ctx, st)
		a.Starter.Release(st)
		a.leave(req.Id, badInit(st.InitStatus))
		return reply, nil
	}
	if !a.ready(req.Id, e, st) {
		cold.failed(errEnded)
		return nil, status.Errorf(codes.Canceled, "sandbox %s was ended while it started", req.Id)
	}
	a.awaitCall(req.Id, cold)
	return reply, nil
}

func mountsOf(mounts []*api.Mount) (all []wire.Mount) {
	for _, m := range mounts {
		mount := wire.Mount{Path: m.Path, Room: m.Room, Shared: m.Shared}
		for _, f := range m.Files {
			mount.Files = append(mount.Files,
				wire.File{Name: f.Name, Data: f.Data, Mode: fs.FileMode(f.Mode)})
		}
		all = append(all, mount)
	}
	return all
}

// refusalLogs returns what a runtime wrote that refused its function. Not every runtime ends its
// logs with sentinels. Waiting for those would keep the VF, and the answer, until the caller's
// patience ends.
func refusalLogs(ctx context.Context, st *startup.Started) []*api.LogLine {
	return logLines(st.Runtime.Logs(ctx, time.Now().Add(time.Second)))
}

func (a *Agent) enter(id string, e *entry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return status.Error(codes.Unavailable, errDrains.Error())
	}
	if _, known := a.sandboxes[id]; known {
		return status.Errorf(codes.AlreadyExists, "a sandbox %s exists already; choose another id",
			id)
	}
	a.sandboxes[id] = e
	return nil
}

// ready publishes a started sandbox and watches for its end. If its end was asked for meanwhile, it
// ends the sandbox and returns false.
func (a *Agent) ready(id string, e *entry, st *startup.Started) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	go a.watch(id, st)
	e.st, e.spec, e.pid = st, st.Spec, st.PID
	a.changed.Broadcast()
	if e.state == ending {
		go st.Close()
		return false
	}
	e.become(ready, "")
	return true
}

// watch waits for the end of a sandbox and gives back what it had.
func (a *Agent) watch(id string, st *startup.Started) {
	<-st.Done()
	err := st.Err()
	if errors.Is(err, sandbox.ErrLetGo) {
		return // its record and its lease are the later agent's
	}
	if err != nil {
		a.Log.Warn("sandbox ended", "sandbox", id, "err", err)
		a.Metrics.died()
		a.Starter.Reports.Write(st.Spec, st.Spans, err)
	}
	a.Starter.Blame(st, err)
	a.Starter.Release(st)
	a.leave(id, err)
}

// leave forgets a sandbox that is gone, and tells the callers that wait for its end why it ended:
// the reason that a caller gave or, without one, failed.
func (a *Agent) leave(id string, failed error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.sandboxes[id]
	if e == nil {
		return
	}
	if e.cold != nil {
		e.cold.failed(errEnded)
	}
	if e.reason == "" && failed != nil {
		e.reason, e.failed = failed.Error(), true
	}
	delete(a.sandboxes, id)
	a.ends.add(&api.Ended{
		Id: id, Reason: e.reason, Failed: e.failed, TimeNs: time.Now().UnixNano(),
	})
	a.changed.Broadcast()
}

// Run implements api.NodeServer.
func (a *Agent) Run(ctx context.Context, req *api.RunRequest) (*api.RunReply, error) {
	st, cold, err := a.claim(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	begin, answered := time.Now(), cold.run()
	var until time.Time
	if req.TimeoutMs > 0 {
		until = begin.Add(time.Duration(req.TimeoutMs) * time.Millisecond)
	}
	code, body, err := st.Runtime.Run(ctx, req.Body, until)
	answered(err)
	if err != nil {
		return nil, runError(req.Id, st, err)
	}
	reply := &api.RunReply{Status: int32(code), Body: body, BeginNs: begin.UnixNano(),
		EndNs: begin.Add(time.Since(begin)).UnixNano()} // the clock may be set meanwhile
	if w, can := st.Sandbox.(sandbox.Weigher); can && cold != nil {
		if f, err := w.Weigh(timeline.FirstAnswer); err == nil {
			reply.Memory = footprint(f)
		}
	}
	if g, can := st.Sandbox.(sandbox.Gated); can && cold != nil && cold.boots {
		if gate, has := g.Gate(); has {
			if slices.ContainsFunc(st.Spans, isOfNIC) { // it was up before the start was over
				gate.Spans, gate.Memory = nil, nil
			}
			reply.Gate = gateReply(gate)
		}
	}
	reply.Logs = logLines(st.Runtime.Logs(ctx, until))
	return reply, nil
}

// measureNIC waits for a NIC that comes up beside the program, perhaps after the first answer, and
// measures the stages that the start is without.
func (a *Agent) measureNIC(st *startup.Started) {
	g, can := st.Sandbox.(sandbox.Gated)
	if !can || g.Opened() == nil || slices.ContainsFunc(st.Spans, isOfNIC) {
		return
	}
	select {
	case <-g.Opened():
		gate, _ := g.Gate()
		a.Metrics.started(a.how(st), gate.Spans)
	case <-st.Done():
	}
}

func isOfNIC(s timeline.Span) bool { return s.Stage == timeline.VFDriver }

// runError tells a runtime that was not reached, and so has seen nothing, from one that failed, and
// from one whose NIC did.
func runError(id string, st *startup.Started, err error) error {
	if errors.Is(err, sandbox.ErrUnreached) {
		return status.Errorf(codes.Aborted, "sandbox %s: %v", id, err)
	}
	if gone := ended(st); gone != nil {
		err = fmt.Errorf("the sandbox ended: %w", gone)
	}
	if errors.Is(err, wire.ErrNIC) {
		return status.Errorf(codes.Unavailable, "sandbox %s: %v; `fastiov report %s` has its "+
			"console and kernel log", id, err, id)
	}
	return grpcError(id, err)
}

func ended(s sandbox.Sandbox) error {
	select {
	case <-s.Done():
		return s.Err()
	default:
		return nil
	}
}

func (a *Agent) find(ctx context.Context, id string) (*startup.Started, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, err := a.started(ctx, id)
	if err != nil {
		return nil, err
	}
	return e.st, nil
}

// offers refuses a runtime handler that this node does not have.
func (a *Agent) offers(handler string) error {
	chooser, can := a.Starter.Driver.(sandbox.Chooser)
	if !can {
		return fmt.Errorf("runtime handler %.40q: sandboxes of %s have none; leave it out",
			handler, a.Driver)
	}
	return chooser.Offers(handler)
}

// claim finds a sandbox for a call; the first one finds its cold start, too.
func (a *Agent) claim(ctx context.Context, id string) (*startup.Started, *coldStart, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, err := a.started(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	cold := e.cold
	e.cold = nil
	return e.st, cold, nil
}

// started returns a sandbox that has been started. It waits for one that is being adopted, which
// takes a bounded time. It refuses one that is ending: a call there would be cut off, and elsewhere
// it is not. The caller holds mu.
func (a *Agent) started(ctx context.Context, id string) (*entry, error) {
	e := a.sandboxes[id]
	if e != nil && e.state == adopting {
		if err := a.await(ctx, func() bool { return e.state != adopting }); err != nil {
			return nil, status.Errorf(status.FromContextError(err).Code(),
				"sandbox %s is still being adopted; call again", id)
		}
	}
	switch {
	case e == nil || e.st == nil && e.reason == "":
		return nil, status.Errorf(codes.NotFound, "no started sandbox %q on this node", id)
	case e.st == nil || e.state == ending:
		return nil, status.Errorf(codes.NotFound, "no started sandbox %q on this node: %s", id,
			e.reason)
	}
	return e, nil
}

// Stop implements api.NodeServer.
func (a *Agent) Stop(ctx context.Context, req *api.StopRequest) (*api.StopReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.sandboxes[req.Id]
	a.end(req.Id, "it was stopped")
	if err := a.await(ctx, func() bool {
		return e == nil || a.sandboxes[req.Id] != e
	}); err != nil {
		return nil, status.Errorf(status.FromContextError(err).Code(),
			"sandbox %s has not ended yet; `fastiov status` shows when it has", req.Id)
	}
	return &api.StopReply{}, nil
}

// await waits for sandboxes to go until enough is true, as long as ctx allows; the caller holds mu.
func (a *Agent) await(ctx context.Context, enough func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	})
	defer stop()
	for !enough() {
		if err := ctx.Err(); err != nil {
			return err
		}
		a.changed.Wait()
	}
	return nil
}

// end makes a sandbox end, once; the caller holds mu. A sandbox that starts or is being adopted
// ends when its goroutine sees that its context has ended, or is done.
func (a *Agent) end(id, why string) {
	e := a.sandboxes[id]
	if e == nil || e.state == ending {
		return
	}
	e.become(ending, why)
	a.changed.Broadcast()
	switch {
	case e.st != nil:
		go e.st.Close()
	case e.cancel != nil:
		e.cancel()
	}
}

// Report implements api.NodeServer.
func (a *Agent) Report(_ context.Context, req *api.ReportRequest) (*api.ReportReply, error) {
	if req.Id == "" {
		reply := &api.ReportReply{}
		for _, k := range a.Starter.Reports.List() {
			reply.Kept = append(reply.Kept, &api.KeptReport{Id: k.ID, TimeNs: k.Time.UnixNano(),
				Why: k.Why})
		}
		return reply, nil
	}
	if !validID.MatchString(req.Id) {
		return nil, status.Errorf(codes.InvalidArgument,
			"sandbox id %q: want 1 to 40 of a-z, 0-9 and -", req.Id)
	}
	b, err := a.Starter.Reports.Read(req.Id)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return &api.ReportReply{TarGz: b}, nil
}

// grpcError gives err the code that the node API documents.
func grpcError(id string, err error) error {
	var refused *startup.Refused
	var image *oci.Refusal
	switch {
	case errors.As(err, &refused):
		return status.Error(codes.ResourceExhausted, refused.Error())
	case errors.As(err, &image) && image.Passing():
		return status.Error(codes.Aborted, image.Terse())
	case errors.As(err, &image):
		return status.Error(codes.InvalidArgument, image.Terse())
	case errors.Is(err, errors.ErrUnsupported):
		return status.Errorf(codes.InvalidArgument, "sandbox %s: %v", id, err)
	case errors.Is(err, context.Canceled):
		return status.Errorf(codes.Canceled, "sandbox %s: %v", id, err)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.DeadlineExceeded, "sandbox %s: %v", id, err)
	default:
		return status.Errorf(codes.Internal,
			"sandbox %s: %v; `fastiov report %s` has its console and kernel log", id, err, id)
	}
}
