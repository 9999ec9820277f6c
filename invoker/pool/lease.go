package pool

import (
	"cmp"
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
	Wait        time.Duration            // in the pool's queue, at most; 0: Config.Wait, the node's part included
	Concurrency int                      // how many jobs of the group a sandbox runs at once; 0: one
	Keep        func(*api.RunReply) bool // whether the sandbox may serve another job after that answer

	// The requests are made when they are to be sent. Where one cannot be made, the job ends with that error.
	Start func() (*api.StartRequest, error) // id, memory and wait are filled in
	Run   func() (*api.RunRequest, error)   // the id is filled in

	// Again is Start for a sandbox that is there before the next job, which the policy may ask for hours
	// later: it must hold nothing of this one. Where it is nil there is no such sandbox.
	Again func() (*api.StartRequest, error)
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

// Submit has the job placed, run in a sandbox that is started for it if it must be, and the sandbox given back. Then ended is called, in a
// goroutine of its own or, where the job may not even wait, before Submit returns. Its error is *Refused or *CallError, or that of a
// request that could not be made; its Result holds what had been reached by then.
//
// No goroutine waits with the job: ten thousands may.
//
// A job is tried elsewhere as long as its runtime cannot have seen its /run: when its warm sandbox turns out to have ended, cannot be
// resumed or cannot be reached, and when its node is out of reach before the start.
func (p *Pool) Submit(job Job, ended func(Result, error)) {
	e := &errand{p: p, job: job, ended: ended}
	now := time.Now()
	e.waiter.init(now, now.Add(cmp.Or(job.Wait, p.cfg.Wait)))
	e.waiter.errand = e
	e.arrive(false)
}

// Do submits a job and waits for its end.
func (p *Pool) Do(job Job) (result Result, err error) {
	over := make(chan struct{})
	p.Submit(job, func(r Result, e error) {
		result, err = r, e
		close(over)
	})
	<-over
	return result, err
}

// An errand is a job on its way.
type errand struct {
	Result
	p      *Pool
	job    Job
	ended  func(Result, error)
	waiter waiter
	box    *box
}

func (e *errand) arrive(again bool) {
	refused := ""
	e.p.happen(func(s *state, now time.Time) { refused = s.arrive(&e.waiter, &e.job, again, now) })
	if refused != "" {
		e.ended(Result{}, &Refused{refused, true})
	}
}

// granted runs the job with what it was granted, in one of the pool's workers.
func (e *errand) granted(g grant) {
	if g.err != nil {
		e.ended(Result{}, g.err)
		return
	}
	e.box = g.box
	e.Result = Result{Sandbox: g.box.id, Node: g.box.node.name, How: g.how, Placed: time.Now(), Cold: g.how == Cold || g.how == Prewarm}
	keep, err := e.run(g)
	e.p.release(g.box, keep)
	if errors.As(err, &e.waiter.failed) {
		e.arrive(true)
		return
	}
	e.ended(e.Result, err)
}

// release gives a slot of a sandbox back.
func (p *Pool) release(b *box, keep bool) {
	p.happen(func(s *state, now time.Time) { s.done(b, keep, now) })
}

// elsewhere says why the job has not been run in a sandbox, though it may be in another.
type elsewhere struct{ why string }

func (e *elsewhere) Error() string { return e.why }

func tryElsewhere(err error) error { return &elsewhere{status.Convert(err).Message()} }

// run gets the sandbox ready and runs the job in it; keep says whether the sandbox is good for another job.
func (e *errand) run(g grant) (keep bool, err error) {
	if err := e.ready(g); err != nil {
		return g.how == Warming, err // what another job starts is for that job to judge
	}
	if e.Start != nil && e.Start.InitStatus != 200 {
		return false, nil
	}
	request, err := e.job.Run()
	if err != nil {
		return true, err // nothing has been sent
	}
	request.Id = e.box.id
	e.Run, err = e.box.node.to.Run(e.box.node.to.context(), request) // which has its own time limit
	switch code := status.Code(err); {
	case err == nil:
		return e.job.Keep(e.Run), nil
	case !e.Cold && (code == codes.NotFound || code == codes.Aborted):
		return false, tryElsewhere(err) // it ended while it idled, or is not reached: nothing has run
	default:
		return false, &CallError{Running, e.box.id, err}
	}
}

// call bounds a call to the node, which ends with the node too.
func (e *errand) call(within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.box.node.to.context(), within)
}

// ready makes the sandbox take /run, each in its way.
func (e *errand) ready(g grant) error {
	switch {
	case g.how == Cold:
		return e.startBox()
	case g.how == Prewarm:
		return e.initStem()
	case g.how == Warming:
		return e.awaitStart()
	case g.mine:
		g.wake.err = e.resume()
		close(g.wake.over)
		return g.wake.err
	case g.wake != nil:
		<-g.wake.over
		return g.wake.err
	}
	return nil
}

func (e *errand) startBox() error {
	request, err := e.job.Start()
	if err != nil {
		e.p.over(e.box, nil, err)
		return err
	}
	wait := min(max(time.Until(e.waiter.deadline), 0), e.p.cfg.Wait)
	ctx, stop := e.call(wait + e.p.cfg.Start)
	defer stop()
	request.Id = e.box.id
	request.MemoryMib = uint32(e.job.MemoryMiB)
	request.WaitMs = uint32(wait.Milliseconds())
	reply, err := e.box.node.to.Start(ctx, request)
	e.Start = reply
	switch status.Code(err) {
	case codes.Unavailable:
		e.p.unreachable(e.box.node, err)
		err = tryElsewhere(err)
	case codes.ResourceExhausted:
		e.box.node.to.ask()
	}
	return e.started(reply, err)
}

// started tells the owner, and whoever waits for the same sandbox, how the start went.
func (e *errand) started(reply *api.StartReply, err error) error {
	e.p.over(e.box, reply, err)
	var other *elsewhere
	if err == nil || errors.As(err, &other) {
		return err
	}
	return &CallError{Starting, e.box.id, err}
}

func (e *errand) initStem() error {
	request, err := e.job.Start()
	if err != nil {
		e.p.over(e.box, nil, err)
		return err
	}
	ctx, stop := e.call(e.p.cfg.Start)
	defer stop()
	reply, err := e.box.node.to.Init(ctx, &api.InitRequest{Id: e.box.id, Init: request.Init, Call: request.Call})
	e.Start = reply
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Aborted:
		err = tryElsewhere(err)
	}
	return e.started(reply, err)
}

// awaitStart waits for the job that starts the sandbox. Where its /init is refused ours would be too; where the start fails for another
// reason, another may not.
func (e *errand) awaitStart() error {
	<-e.box.ready
	if err := e.box.start.err; err != nil {
		return tryElsewhere(err)
	}
	if e.box.start.reply.InitStatus != 200 {
		e.Start, e.Cold = e.box.start.reply, true
	}
	return nil
}

func (e *errand) resume() error {
	<-e.box.settled // the pausing; it has a deadline
	ctx, stop := e.call(e.p.cfg.Start)
	defer stop()
	if _, err := e.box.node.to.Resume(ctx, &api.ResumeRequest{Id: e.box.id}); err != nil {
		return tryElsewhere(err)
	}
	return nil
}

// unreachable takes in that a call found its node gone.
func (p *Pool) unreachable(n *node, err error) {
	p.happen(func(s *state, now time.Time) { s.unreached(n, n.name+": "+status.Convert(err).Message(), now) })
	n.to.ask()
}
