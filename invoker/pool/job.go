package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A Job is one run of a function.
type Job struct {
	Namespace   string // whose job it is: sandboxes are not shared between namespaces, room is shared fairly
	Group       string
	Image       string // what Start will name, if a stem cell may serve and nodes that have it are to be preferred
	MemoryMiB   int
	Concurrency int                      // how many jobs of the group a sandbox runs at once; 0: one
	Keep        func(*api.RunReply) bool // whether the sandbox may serve another job after that answer

	// The requests are made when they are to be sent. Where one cannot be made, the job ends with that error.
	Start func() (*api.StartRequest, error) // id, memory and wait are filled in
	Run   func() (*api.RunRequest, error)   // the id is filled in
}

// A Result is how far a job got. Start is nil where another job had started the sandbox, Run where the runtime refused /init.
type Result struct {
	Sandbox string
	Node    string
	How     Kind      // Warm, Warming, Prewarm or Cold
	Placed  time.Time // when the job got its sandbox, or leave to start one
	Cold    bool      // the job itself had the sandbox started, or a stem cell initialised
	Start   *api.StartReply
	Run     *api.RunReply
}

// Phase tells in which call to the node a job failed.
type Phase string

const (
	Starting Phase = "start"
	Running  Phase = "run"
)

// CallError is a call to the node that failed; it unwraps to the gRPC status.
type CallError struct {
	Phase   Phase
	Sandbox string
	Err     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s of sandbox %s: %s", e.Phase, e.Sandbox, status.Convert(e.Err).Message())
}
func (e *CallError) Unwrap() error { return e.Err }

// Do places the job, starts a sandbox if it must, runs it, and gives the sandbox back. The error is *Refused or *CallError, that of a
// request that could not be made, or the context's where ctx ended while the job waited; the Result holds what had been reached by then.
//
// A job is tried elsewhere as long as its runtime cannot have seen its /run: when its warm sandbox turns out to have ended, cannot be
// resumed or cannot be reached, and when its node is out of reach before the start.
func (p *Pool) Do(ctx context.Context, job Job) (Result, error) {
	now := time.Now()
	w := newWaiter(now, now.Add(p.cfg.Wait))
	for again := false; ; again = true {
		if err := p.arrive(&job, w, again); err != nil {
			return Result{}, err
		}
		g := p.await(ctx, w)
		if g.err != nil {
			return Result{}, g.err
		}
		a, err := p.attempt(ctx, &job, w, g)
		if !errors.As(err, &w.failed) {
			return a.Result, err
		}
	}
}

func (p *Pool) arrive(job *Job, w *waiter, again bool) error {
	var refused string
	p.happen(func(s *state, now time.Time) { refused = s.arrive(w, job, again, now) })
	if refused != "" {
		return &Refused{refused, true}
	}
	return nil
}

// await waits for a grant. What waits here may be ten thousands of goroutines, so it matters what is on their stacks.
func (p *Pool) await(ctx context.Context, w *waiter) grant {
	if ctx.Done() == nil {
		return <-w.grant
	}
	return p.awaitOrGiveUp(ctx, w)
}

func (p *Pool) awaitOrGiveUp(ctx context.Context, w *waiter) grant {
	select {
	case g := <-w.grant:
		return g
	case <-ctx.Done():
		return p.giveUp(ctx, w)
	}
}

// giveUp ends a wait. A waiter that gives up may have been granted a sandbox meanwhile, which it then gives back.
func (p *Pool) giveUp(ctx context.Context, w *waiter) grant {
	p.happen(func(s *state, now time.Time) {
		if w.waits() {
			s.leave(w, now)
			w.grant <- grant{err: ctx.Err()}
		}
	})
	g := <-w.grant
	if g.box == nil {
		return g
	}
	if g.how == Cold || g.how == Prewarm {
		p.over(g.box, nil, ctx.Err())
	}
	p.release(g.box, !g.paused) // one that was to be resumed first is not as good as new
	return grant{err: ctx.Err()}
}

// release gives a slot of a sandbox back.
func (p *Pool) release(b *box, keep bool) {
	p.happen(func(s *state, now time.Time) { s.done(b, keep, now) })
}

// An attempt is a job in a sandbox.
type attempt struct {
	Result
	p        *Pool
	job      *Job
	box      *box
	deadline time.Time
}

// attempt runs a job in the sandbox that it was granted.
func (p *Pool) attempt(ctx context.Context, job *Job, w *waiter, g grant) (*attempt, error) {
	a := &attempt{p: p, job: job, box: g.box, deadline: w.deadline}
	a.Result = Result{Sandbox: g.box.id, Node: g.box.node.name, How: g.how, Placed: time.Now(), Cold: g.how == Cold || g.how == Prewarm}
	keep, err := a.run(ctx, g)
	p.release(g.box, keep)
	return a, err
}

// elsewhere says why the job has not been run in a sandbox, though it may be in another.
type elsewhere struct{ why string }

func (e *elsewhere) Error() string { return e.why }

func tryElsewhere(err error) error { return &elsewhere{status.Convert(err).Message()} }

// run gets the sandbox ready and runs the job in it; keep says whether the sandbox is good for another job.
func (a *attempt) run(ctx context.Context, g grant) (keep bool, err error) {
	if err := a.ready(ctx, g); err != nil {
		return g.how == Warming, err // what another job starts is for that job to judge
	}
	if a.Start != nil && a.Start.InitStatus != 200 {
		return false, nil
	}
	request, err := a.job.Run()
	if err != nil {
		return true, err // nothing has been sent
	}
	request.Id = a.box.id
	ctx, stop := a.call(ctx, time.Duration(request.TimeoutMs)*time.Millisecond+grace)
	defer stop()
	a.Run, err = a.box.node.to.Run(ctx, request)
	switch code := status.Code(err); {
	case err == nil:
		return a.job.Keep(a.Run), nil
	case !a.Cold && (code == codes.NotFound || code == codes.Aborted):
		return false, tryElsewhere(err) // it ended while it idled, or is not reached: nothing has run
	default:
		return false, &CallError{Running, a.box.id, err}
	}
}

// call bounds a call to the node, which ends with the node too.
func (a *attempt) call(ctx context.Context, within time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, within)
	lost := context.AfterFunc(a.box.node.to.context(), cancel)
	return ctx, func() { lost(); cancel() }
}

// grace is what the node may take to report a run that used up its time.
const grace = 10 * time.Second

// ready makes the sandbox take /run, each in its way.
func (a *attempt) ready(ctx context.Context, g grant) error {
	switch {
	case g.how == Cold:
		return a.startBox(ctx)
	case g.how == Prewarm:
		return a.initStem(ctx)
	case g.how == Warming:
		return a.awaitStart(ctx)
	case g.paused:
		return a.resume(ctx)
	}
	return nil
}

func (a *attempt) startBox(ctx context.Context) error {
	request, err := a.job.Start()
	if err != nil {
		a.p.over(a.box, nil, err)
		return err
	}
	wait := max(time.Until(a.deadline), 0)
	ctx, stop := a.call(ctx, wait+a.p.cfg.Start)
	defer stop()
	request.Id = a.box.id
	request.MemoryMib = uint32(a.job.MemoryMiB)
	request.WaitMs = uint32(wait.Milliseconds())
	reply, err := a.box.node.to.Start(ctx, request)
	a.Start = reply
	switch status.Code(err) {
	case codes.Unavailable:
		a.p.unreachable(a.box.node, err)
		err = tryElsewhere(err)
	case codes.ResourceExhausted:
		a.box.node.to.ask()
	}
	return a.started(reply, err)
}

// started tells the owner, and whoever waits for the same sandbox, how the start went.
func (a *attempt) started(reply *api.StartReply, err error) error {
	a.p.over(a.box, reply, err)
	var other *elsewhere
	if err == nil || errors.As(err, &other) {
		return err
	}
	return &CallError{Starting, a.box.id, err}
}

func (a *attempt) initStem(ctx context.Context) error {
	request, err := a.job.Start()
	if err != nil {
		a.p.over(a.box, nil, err)
		return err
	}
	ctx, stop := a.call(ctx, a.p.cfg.Start)
	defer stop()
	reply, err := a.box.node.to.Init(ctx, &api.InitRequest{Id: a.box.id, Init: request.Init, Call: request.Call})
	a.Start = reply
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Aborted:
		err = tryElsewhere(err)
	}
	return a.started(reply, err)
}

// awaitStart waits for the job that starts the sandbox. Where its /init is refused ours would be too; where the start fails for another
// reason, another may not.
func (a *attempt) awaitStart(ctx context.Context) error {
	select {
	case <-a.box.ready:
	case <-ctx.Done():
		return &CallError{Starting, a.box.id, status.FromContextError(ctx.Err()).Err()}
	}
	if err := a.box.start.err; err != nil {
		return tryElsewhere(err)
	}
	if a.box.start.reply.InitStatus != 200 {
		a.Start, a.Cold = a.box.start.reply, true
	}
	return nil
}

func (a *attempt) resume(ctx context.Context) error {
	<-a.box.settled // the pausing; it has a deadline
	ctx, stop := a.call(ctx, a.p.cfg.Start)
	defer stop()
	if _, err := a.box.node.to.Resume(ctx, &api.ResumeRequest{Id: a.box.id}); err != nil {
		return tryElsewhere(err)
	}
	return nil
}

// unreachable takes in that a call found its node gone.
func (p *Pool) unreachable(n *node, err error) {
	p.happen(func(s *state, now time.Time) { s.unreached(n, n.name+": "+status.Convert(err).Message(), now) })
	n.to.ask()
}
