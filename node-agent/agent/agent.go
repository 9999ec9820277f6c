package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// VFs is what the agent needs of the VF pool beside leasing.
type VFs interface {
	startup.VFPool
	Snapshot() []vf.Status
	Found() []vf.Lease // leases that a former agent left, each to be adopted or returned
	Fault(bdf, why string)
}

// Config is what an Agent is made of.
type Config struct {
	Version string
	Driver  string // its name, as reported
	FastIOV string // the set of FastIOV's ways to start a VM that is switched on, as reported; "none" if empty
	Starter *startup.Starter
	VFs     VFs             // nil on a node without VFs
	Images  func() []string // the runtime images that are here; nil where none is needed
	Metrics *Metrics
	Log     *slog.Logger
}

// An Agent serves the node API.
type Agent struct {
	api.UnimplementedNodeServer
	Config
	starts starts

	mu        sync.Mutex
	sandboxes map[string]*entry
	draining  bool
	gone      *sync.Cond      // a sandbox has gone
	lost      map[string]bool // sandboxes that lost their VF before they were adopted
}

type entry struct {
	state   string
	image   string
	started time.Time
	adopted bool
	st      *startup.Started // nil while starting
	cold    *coldStart       // until it has answered the call it was started for
	cancel  context.CancelFunc
	ending  bool // somebody wants it to end
}

// New returns an agent that knows of no sandboxes; call Adopt before serving it.
func New(cfg Config) *Agent {
	cfg.FastIOV = cmp.Or(cfg.FastIOV, "none")
	a := &Agent{Config: cfg, sandboxes: map[string]*entry{}}
	a.gone = sync.NewCond(&a.mu)
	return a
}

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// Start implements api.NodeServer.
func (a *Agent) Start(ctx context.Context, req *api.StartRequest) (*api.StartReply, error) {
	if !validID.MatchString(req.Id) {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox id %q: want 1 to 40 of a-z, 0-9 and -, not beginning with -", req.Id)
	}
	if req.MemoryMib < 64 {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox %s: memory of %d MiB; a microVM needs at least 64", req.Id, req.MemoryMib)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &entry{state: "starting", image: req.Image, started: time.Now(), cancel: cancel}
	if err := a.enter(req.Id, e); err != nil {
		return nil, err
	}
	cold := a.starts.begin(req.Id, req.Call)
	st, err := a.Starter.Start(ctx, startup.Request{
		ID: req.Id, Image: req.Image, Namespace: req.Namespace, Init: req.Init, MemoryMiB: int(req.MemoryMib),
		Wait: time.Duration(req.WaitMs) * time.Millisecond, Env: req.Env, Timeline: &cold.Timeline,
	})
	if err != nil {
		cold.failed(err)
		a.leave(req.Id)
		a.Metrics.startFailed(err)
		return nil, grpcError(req.Id, err)
	}
	a.Metrics.started(a.how(st), st.Spans)
	reply := a.startReply(req.Id, st)
	cold.ready(reply.Vf)
	if st.InitStatus != 200 {
		cold.failed(badInit(st.InitStatus))
		reply.Logs = logLines(st.Logs(ctx))
		a.Starter.Release(st)
		a.leave(req.Id)
		return reply, nil
	}
	if !a.ready(req.Id, e, st) {
		cold.failed(errEnded)
		return nil, status.Errorf(codes.Canceled, "sandbox %s was ended while it started", req.Id)
	}
	a.awaitCall(req.Id, cold)
	return reply, nil
}

func (a *Agent) enter(id string, e *entry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return status.Error(codes.Unavailable, "the node drains and takes no new sandboxes; `fastiov drain --undo` lets it")
	}
	if _, known := a.sandboxes[id]; known {
		return status.Errorf(codes.AlreadyExists, "a sandbox %s exists already; choose another id", id)
	}
	a.sandboxes[id] = e
	return nil
}

// ready publishes a started sandbox and watches for its end. It returns false, and ends the sandbox,
// where somebody has wanted its end meanwhile.
func (a *Agent) ready(id string, e *entry, st *startup.Started) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	go a.watch(id, st)
	e.st, e.state = st, "ready"
	wanted := !e.ending
	if !wanted {
		e.ending = false
		a.end(id)
	}
	return wanted
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
	}
	var fault *sandbox.VFFault
	if errors.As(err, &fault) {
		a.VFs.Fault(st.Spec.VF.BDF, fault.Why)
	}
	a.Starter.Release(st)
	a.leave(id)
}

func (a *Agent) leave(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.sandboxes[id]; e != nil && e.cold != nil {
		e.cold.failed(errEnded)
	}
	delete(a.sandboxes, id)
	a.gone.Broadcast()
}

// Run implements api.NodeServer.
func (a *Agent) Run(ctx context.Context, req *api.RunRequest) (*api.RunReply, error) {
	st, cold, err := a.claim(req.Id)
	if err != nil {
		return nil, err
	}
	if req.TimeoutMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.TimeoutMs)*time.Millisecond)
		defer cancel()
	}
	begin, answered := time.Now(), cold.run()
	code, body, err := st.Post(ctx, "/run", req.Body)
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
	reply.Logs = logLines(st.Logs(ctx))
	return reply, nil
}

// runError tells a runtime that was not reached, and so has seen nothing, from one that failed.
func runError(id string, st *startup.Started, err error) error {
	if errors.Is(err, sandbox.ErrUnreached) {
		return status.Errorf(codes.Aborted, "sandbox %s: %v", id, err)
	}
	if gone := ended(st); gone != nil {
		err = fmt.Errorf("the sandbox ended: %w", gone)
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

func (a *Agent) find(id string) (*startup.Started, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, err := a.started(id)
	if err != nil {
		return nil, err
	}
	return e.st, nil
}

// claim finds a sandbox for a call; the first one finds its cold start, too.
func (a *Agent) claim(id string) (*startup.Started, *coldStart, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, err := a.started(id)
	if err != nil {
		return nil, nil, err
	}
	cold := e.cold
	e.cold = nil
	return e.st, cold, nil
}

// started finds a sandbox that has been started; the caller holds mu.
func (a *Agent) started(id string) (*entry, error) {
	if e := a.sandboxes[id]; e != nil && e.st != nil {
		return e, nil
	}
	return nil, status.Errorf(codes.NotFound, "no started sandbox %q on this node", id)
}

// Stop implements api.NodeServer.
func (a *Agent) Stop(ctx context.Context, req *api.StopRequest) (*api.StopReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.sandboxes[req.Id]
	a.end(req.Id)
	if err := a.await(ctx, func() bool { return e == nil || a.sandboxes[req.Id] != e }); err != nil {
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
		a.gone.Broadcast()
	})
	defer stop()
	for !enough() {
		if err := ctx.Err(); err != nil {
			return err
		}
		a.gone.Wait()
	}
	return nil
}

// end makes a sandbox end, once; the caller holds mu. A sandbox that starts ends when its start sees
// its context, or becomes ready.
func (a *Agent) end(id string) {
	e := a.sandboxes[id]
	if e == nil || e.ending {
		return
	}
	e.ending = true
	if e.st == nil {
		e.cancel()
		return
	}
	e.state = "ending"
	go e.st.Close()
}

// Lost ends the sandbox of a lease whose VF failed or has gone; its release follows.
func (a *Agent) Lost(lease vf.Lease, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Log.Warn("ending a sandbox that lost its VF", "sandbox", lease.Owner.Sandbox, "vf", lease.BDF, "why", why)
	if a.lost != nil {
		a.lost[lease.Owner.Sandbox] = true
	}
	a.end(lease.Owner.Sandbox)
}

// Drain implements api.NodeServer.
func (a *Agent) Drain(ctx context.Context, req *api.DrainRequest) (*api.DrainReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.draining = !req.Undo
	if req.Undo {
		return &api.DrainReply{}, nil
	}
	reply := &api.DrainReply{Stopped: uint32(len(a.sandboxes))}
	enough := func() bool {
		for id := range a.sandboxes {
			if req.Cancel {
				a.end(id)
			}
		}
		return len(a.sandboxes) == 0
	}
	if a.await(ctx, enough) != nil {
		return nil, status.Errorf(codes.DeadlineExceeded,
			"%d sandboxes still run; give more time, or --cancel to end them", len(a.sandboxes))
	}
	return reply, nil
}

// Report implements api.NodeServer.
func (a *Agent) Report(_ context.Context, req *api.ReportRequest) (*api.ReportReply, error) {
	if !validID.MatchString(req.Id) {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox id %q: want 1 to 40 of a-z, 0-9 and -", req.Id)
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
	case errors.Is(err, context.Canceled):
		return status.Errorf(codes.Canceled, "sandbox %s: %v", id, err)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.DeadlineExceeded, "sandbox %s: %v", id, err)
	default:
		return status.Errorf(codes.Internal, "sandbox %s: %v; `fastiov report %s` has its console and kernel log", id, err, id)
	}
}
