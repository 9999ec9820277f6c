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

// A Demand says for whom a sandbox is needed, and which.
type Demand struct {
	Namespace   string // sandboxes are not shared between namespaces, and room is shared fairly
	Group       string
	Image       string // which Start will name; empty: no node is nearer
	Stem        bool   // a stem cell of the image does: all else that Start names is its Init
	MemoryMiB   int
	Concurrency int           // how many leases of the group a sandbox has at once; 0: one
	Wait        time.Duration // in the pool's queue, at most; 0: Config.Wait
	Bounds

	// Endless says that the holder may keep the lease for hours, as for a WebSocket. Nobody waits
	// for its end: where its room is claimed for another job, the lease's Context ends.
	Endless bool

	// Start makes the request that starts the sandbox, when that is to be sent; id, memory and wait
	// are filled in. Where it cannot be made, the demand ends with that error.
	Start func() (*api.StartRequest, error)

	// Ready returns why a sandbox that started so is not ready for this group: it ends, and so does
	// the demand, with that error. Where Ready is nil, what has started is ready.
	Ready func(*api.StartReply) error

	// Again is Start for a sandbox that is started before the next demand, which the policy may ask
	// for hours later: like Ready, it must hold nothing of this demand. Where it is nil, none is
	// started.
	Again func() (*api.StartRequest, error)
}

// Bounds are for all sandboxes of a group, as its last demand says. What is zero is as Config says.
type Bounds struct {
	Max        int           // so many there are at once, those included that are about to end
	KeepAlive  time.Duration // in the place of Config.Policy
	PauseAfter time.Duration // in the place of Config.PauseAfter; negative: they are never paused

	// Scaled says that the group has as many sandboxes as Keep says, whatever their keep-alive.
	// Where there is none, a demand starts one; else it waits for the first that has a slot, and
	// its turn for room goes to a start that is missing. What idles beyond them ends. Demands of an
	// Endless Concurrency that overlap share them, and what is beyond them gets none.
	Scaled bool
}

// A Placement says which sandbox a demand got, and how. It is zero where it got none.
type Placement struct {
	Sandbox string
	Node    string
	How     Kind            // Warm, Warming, Prewarm or Cold
	Placed  time.Time       // when the demand got its sandbox, or leave to start one
	Cold    bool            // the sandbox was started, or a stem cell initialised, for this demand
	Start   *api.StartReply // to that; nil where another demand had the sandbox started
}

// A Lease is a slot in a sandbox that is ready, from Acquire until Release or Retry.
type Lease struct {
	Placement
	pool    *Pool
	demand  Demand
	use     func(*Lease, error)
	waiter  waiter
	box     *box   // nil: it is not held
	answers uint64 // of the box, when the lease began
	ctx     context.Context
	end     context.CancelCauseFunc // of ctx, which only an endless lease has
}

// mostUnanswered calls in a row may be their callers' fault; more are the program's.
const mostUnanswered = 5

// ErrClaimed is why the Context of an endless lease ends when its room is needed.
var ErrClaimed = errors.New("pool: the sandbox's room is needed for a job that has waited too long")

// StartError is a start that failed; it unwraps to the gRPC status.
type StartError struct {
	Sandbox string
	Err     error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start of sandbox %s: %s", e.Sandbox, status.Convert(e.Err).Message())
}
func (e *StartError) Unwrap() error { return e.Err }

// Acquire has the demand placed, and has a sandbox started for it if it must be. Then it calls use,
// in a goroutine of the pool or, if the demand may not wait at all, before Acquire returns. A panic
// of use ends the process. If the error is nil, use holds the lease and has to give it back.
// Otherwise nobody holds a lease, and the error is *Refused, *StartError, what Ready returned, or
// that of a request that could not be made.
//
// No goroutine waits with the demand: tens of thousands may.
//
// A demand is met elsewhere where its warm sandbox cannot be resumed, or its node is out of reach
// before the start; and where Retry says so.
func (p *Pool) Acquire(demand Demand, use func(*Lease, error)) {
	l := &Lease{pool: p, demand: demand, use: use}
	now := time.Now()
	l.waiter.init(now, now.Add(cmp.Or(demand.Wait, p.cfg.Wait)))
	l.waiter.lease, l.waiter.endless = l, demand.Endless
	refused := ""
	p.happen(func(s *state, now time.Time) { refused = s.arrive(&l.waiter, &l.demand, false, now) })
	if refused != "" {
		use(l, &Refused{refused, true})
	}
}

// Client is the node that has the sandbox. Calls to it end with the lease's Context.
func (l *Lease) Client() api.NodeClient { return l.box.node.to.NodeClient }

// Context ends when the pool closes or gives the node up; that of an endless lease also when its
// room is needed. Then the holder has to give the lease back soon: a pool that closes waits for it.
func (l *Lease) Context() context.Context {
	if l.ctx != nil {
		return l.ctx
	}
	return l.box.node.to.context()
}

// Release gives the lease back; keep says whether its sandbox is good for another.
func (l *Lease) Release(keep bool) { l.giveBack(keep, nil) }

// Answered takes in that the sandbox answered a call, or did not though the caller waited. It
// reports whether the sandbox is good for another: not after so many in a row without an answer. A
// call counts where the sandbox answered no other, either, since the lease began.
func (l *Lease) Answered(did bool) (good bool) {
	if did {
		l.box.answers.Add(1)
		l.box.unanswered.Store(0)
		return true
	}
	return l.box.answers.Load() != l.answers || l.box.unanswered.Add(1) < mostUnanswered
}

// Retry is for a call to the sandbox that failed with err. Where that says that nothing reached the
// runtime, as the sandbox had ended while it idled, or is not reached, Retry gives the lease back
// and returns true: the demand is met by another sandbox, or refused, and use is called again. Else
// the holder still has the lease.
func (l *Lease) Retry(err error) bool {
	if code := status.Code(err); l.Cold || code != codes.NotFound && code != codes.Aborted {
		return false
	}
	l.giveBack(false, tryElsewhere(err))
	return true
}

// giveBack ends the lease. Where its sandbox did not serve it, the demand waits once more, before
// those that came later.
func (l *Lease) giveBack(keep bool, failed *elsewhere) {
	b := l.box
	l.box = nil
	l.pool.happen(func(s *state, now time.Time) {
		if failed != nil {
			b.failed = cmp.Or(b.failed, error(failed))
		}
		if failed != nil && failed.gone {
			s.crashed(b, failed, now)
		}
		s.done(b, &l.waiter, keep, now)
		if l.end != nil {
			l.end(nil)
			l.ctx, l.end = nil, nil
		}
		if failed != nil {
			l.waiter.failed = failed
			if l.How == Warm { // a sandbox that was there: it has not waited since
				l.waiter.deadline = l.waiter.deadline.Add(now.Sub(l.Placed))
			}
			s.arrive(&l.waiter, &l.demand, true, now)
		}
	})
}

// elsewhere says why a sandbox did not serve the demand, though another may.
type elsewhere struct {
	why  string
	gone bool // its node has that sandbox no more
}

func (e *elsewhere) Error() string { return e.why }

func tryElsewhere(err error) *elsewhere {
	return &elsewhere{status.Convert(err).Message(), status.Code(err) == codes.NotFound}
}

// granted makes the sandbox ready and has it used, in one of the pool's workers.
func (l *Lease) granted(g grant) {
	if g.err != nil {
		l.Placement = Placement{}
		l.use(l, g.err)
		return
	}
	l.box, l.answers = g.box, g.box.answers.Load()
	l.Placement = Placement{
		Sandbox: g.box.id, Node: g.box.node.name, How: g.how, Placed: time.Now(),
		Cold: g.how == Cold || g.how == Prewarm,
	}
	err := l.ready(g)
	if err == nil {
		l.use(l, nil)
		return
	}
	var failed *elsewhere
	errors.As(err, &failed)
	l.giveBack(g.how == Warming, failed) // what another demand starts is for that one to judge
	if failed == nil {
		l.use(l, err)
	}
}

// call bounds a call that gets the sandbox ready. It ends with the node, too.
func (l *Lease) call(within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.box.node.to.context(), within)
}

// ready returns when the sandbox can be used.
func (l *Lease) ready(g grant) error {
	switch {
	case g.how == Cold:
		return l.startBox()
	case g.how == Prewarm:
		return l.initStem()
	case g.how == Warming:
		return l.awaitStart()
	case g.mine:
		g.wake.err = l.resume()
		close(g.wake.over)
		return g.wake.err
	case g.wake != nil:
		<-g.wake.over
		return g.wake.err
	}
	return nil
}

func (l *Lease) startBox() error {
	request, err := l.demand.Start()
	if err != nil {
		l.pool.over(l.box, outcome{err: err, unasked: true})
		return err
	}
	wait := min(max(time.Until(l.waiter.deadline), 0), l.pool.cfg.Wait)
	ctx, stop := l.call(wait + l.pool.cfg.Start)
	defer stop()
	request.Id = l.box.id
	request.MemoryMib = uint32(l.demand.MemoryMiB)
	request.WaitMs = uint32(wait.Milliseconds())
	reply, err := l.Client().Start(ctx, request)
	if l.pool.refused(l.box.node, err); status.Code(err) == codes.Unavailable {
		err = tryElsewhere(err)
	}
	return l.started(reply, err)
}

// started tells the owner, and whoever waits for the same sandbox, how the start went.
func (l *Lease) started(reply *api.StartReply, err error) error {
	l.pool.over(l.box, judged(reply, err, l.demand.Ready))
	how := l.box.start
	l.Start = how.reply
	var other *elsewhere
	if how.err == nil || how.reply != nil || errors.As(how.err, &other) {
		return how.err
	}
	return &StartError{l.box.id, err}
}

func (l *Lease) initStem() error {
	request, err := l.demand.Start()
	if err != nil {
		l.pool.over(l.box, outcome{err: err, unasked: true})
		return err
	}
	ctx, stop := l.call(l.pool.cfg.Start)
	defer stop()
	reply, err := l.Client().Init(ctx, &api.InitRequest{
		Id: l.box.id, Init: request.Init, Call: request.Call,
	})
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound, codes.Aborted:
		err = tryElsewhere(err)
	}
	return l.started(reply, err)
}

// awaitStart waits for the demand that starts the sandbox. One that is not ready for that demand
// would not be for ours. Where a node failed, another may not.
func (l *Lease) awaitStart() error {
	<-l.box.ready
	switch how := l.box.start; {
	case how.err == nil:
		return nil
	case how.unasked:
		return how.err
	case how.reply != nil:
		l.Start, l.Cold = how.reply, true
		return how.err
	default:
		return tryElsewhere(how.err)
	}
}

func (l *Lease) resume() error {
	l.box.pausing.end()
	ctx, stop := l.call(l.pool.cfg.Start)
	defer stop()
	if _, err := l.Client().Resume(ctx, &api.ResumeRequest{Id: l.box.id}); err != nil {
		return tryElsewhere(err)
	}
	return nil
}

// unreachable takes in that a call found its node gone.
func (p *Pool) unreachable(n *node, err error) {
	why := n.name + ": " + status.Convert(err).Message()
	p.happen(func(s *state, now time.Time) { s.unreached(n, why, now) })
	n.to.ask()
}
