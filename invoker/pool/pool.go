package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Config says how the pool uses its nodes.
type Config struct {
	Nodes []Named // besides the one that New is given, if it is

	// How long a sandbox idles before it is stopped, counted anew from when it is paused.
	KeepAlive  time.Duration
	Policy     Policy        // how long instead, by function; nil: Fixed(KeepAlive)
	PauseAfter time.Duration // how long a sandbox idles before it is paused; 0: it never is
	StemCells  []StemCell

	// How long a job waits for a sandbox, in the queue and on the node; see Demand.Wait.
	Wait     time.Duration
	Start    time.Duration // how long a start may take after that wait
	Patience time.Duration // how long a job may be overtaken by others that need less; 0: 1 s
	Queue    int           // how many jobs of one namespace may wait; 0: 10,000

	// How long a node is out of reach before its sandboxes are given up; 0: 30 s.
	LostAfter time.Duration
	Left      []Left // what the pool before it has left, see Leave
}

// Named is a node and its name.
type Named struct {
	Name string
	Node api.NodeClient
}

// Refused is the error of a demand that got no sandbox, and why.
type Refused struct {
	Why     string
	TooMany bool // the namespace has as many waiting as it may: others are not concerned
}

func (r *Refused) Error() string { return "no sandbox for it: " + r.Why }

// A wake is the resuming of a paused sandbox. The first job brings it about; others that get a
// place in it meanwhile wait for that.
type wake struct {
	over chan struct{}
	err  error // once over
}

// A pausing is under way from pause until it is over; the zero one is a former pool's.
type pausing struct {
	over   chan struct{}
	giveUp func()
}

// end returns when the sandbox is paused, or will not be.
func (p pausing) end() {
	if p.over != nil {
		p.giveUp()
		<-p.over
	}
}

// A Pool places jobs on the sandboxes of its nodes.
type Pool struct {
	cfg     Config
	mu      sync.Mutex // who holds it is the owner
	state   *state
	timer   *time.Timer
	armed   time.Time      // when it goes off; zero: it does not
	calls   sync.WaitGroup // what the pool itself has under way on its nodes
	closed  chan struct{}  // nothing is left
	once    sync.Once
	ctx     context.Context
	cancel  context.CancelFunc // ends what leases have under way
	workers workers
}

// A grant gives a lease its sandbox, to be started first or not, or a refusal.
type grant struct {
	lease *Lease
	box   *box
	how   Kind
	wake  *wake // to be over before the sandbox is used; nil: there is none to wait for
	mine  bool  // this lease is to bring it about
	err   error
}

// New returns a running pool, which has asked its nodes how much they hold; Close ends it. node may
// be nil where cfg names others.
func New(cfg Config, node api.NodeClient) *Pool {
	cfg.defaults()
	if node != nil {
		cfg.Nodes = append([]Named{{"local", node}}, cfg.Nodes...)
	}
	p := &Pool{cfg: cfg, closed: make(chan struct{}), state: newState(cfg, time.Now())}
	p.workers = workers{grants: make(chan grant), over: p.closed}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.timer = time.AfterFunc(time.Hour, func() {
		p.happen(func(*state, time.Time) { p.armed = time.Time{} })
	})
	p.timer.Stop()
	var looks sync.WaitGroup
	for i, n := range p.state.nodes {
		n.to = newRemote(cfg.Nodes[i].Node, p.ctx)
		looks.Go(func() { p.look(n) })
	}
	looks.Wait()
	for _, n := range p.state.nodes {
		p.calls.Go(func() { p.watch(n) })
		p.calls.Go(func() { p.follow(n) })
	}
	return p
}

func (cfg *Config) defaults() {
	if cfg.Policy == nil {
		cfg.Policy = Fixed(cfg.KeepAlive)
	}
	if cfg.Patience == 0 {
		cfg.Patience = time.Second
	}
	if cfg.Queue == 0 {
		cfg.Queue = 10_000
	}
	if cfg.LostAfter == 0 {
		cfg.LostAfter = 30 * time.Second
	}
}

func newState(cfg Config, now time.Time) *state {
	s := &state{
		policy: cfg.Policy, pauseAfter: cfg.PauseAfter, patience: cfg.Patience,
		mostQueued: cfg.Queue, lostAfter: cfg.LostAfter,
		spaces: map[string]*space{}, groups: map[key]*group{},
		named: map[string]map[key]*group{}, counts: map[Kind]uint64{}, newID: newID,
		left: map[[2]string]Left{},
	}
	for _, l := range cfg.Left {
		s.left[[2]string{l.Node, l.Sandbox}] = l
	}
	for _, cell := range cfg.StemCells {
		st := newStem(cell)
		s.stems = append(s.stems, st)
		s.alarms.set(&st.alarm, st.windowEnd(now))
	}
	for _, named := range cfg.Nodes {
		n := &node{
			name: named.Name, down: named.Name + " has not answered yet", boxes: map[string]*box{},
		}
		n.capacity = room{unbounded, unbounded} // no job is refused for what is not known yet
		n.free, n.alarm.of = n.capacity, n
		s.nodes = append(s.nodes, n)
	}
	return s
}

// happen has the owner take in an event and do what follows from it.
func (p *Pool) happen(event func(s *state, now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, now := p.state, time.Now()
	event(s, now)
	for do, more := decide(s, now); more; do, more = decide(s, now) {
		resting := do.box != nil && do.box.phase == paused
		s.apply(&do, now)
		p.perform(&do, resting)
	}
	if s.queue.n > 0 {
		p.nudge()
	}
	if next := s.next(); !next.IsZero() && (p.armed.IsZero() || next.Before(p.armed)) {
		p.armed = next
		p.timer.Reset(time.Until(next))
	}
	if s.closed && s.empty() {
		p.once.Do(func() { close(p.closed) })
	}
}

// perform does of a step what is outside of the state. It waits for nothing.
func (p *Pool) perform(do *step, paused bool) {
	switch do.kind {
	case Warm, Warming, Prewarm, Cold:
		if paused {
			do.box.wake = &wake{over: make(chan struct{})}
		}
		l := do.waiter.lease
		if l.demand.Endless {
			l.ctx, l.end = context.WithCancelCause(do.box.node.to.context())
		}
		p.workers.give(grant{lease: l, box: do.box, how: do.kind, wake: do.box.wake, mine: paused})
	case Refuse:
		p.workers.give(grant{lease: do.waiter.lease, err: &Refused{Why: do.why}})
		p.nudge() // a node that was full, or drained, may not be any more
	case Claim:
		for _, b := range do.boxes {
			b.endless.all(func(w *waiter) bool { w.lease.end(ErrClaimed); return true })
		}
	case Evict, Expire:
		p.stop(do.box.node, do.box.id)
	case Pause:
		p.pause(do.box)
	case Stem:
		p.prepare(do.box, do.stem.request, nil)
	case Revive:
		p.prepare(do.box, do.group.again, do.group.judge)
	case Keep:
		p.prepare(do.box, do.group.fresh, do.group.judge)
	case Note:
		if n, ok := do.alarm.of.(*node); ok {
			n.to.hangUp(p.ctx)
		}
	}
}

// pause has a sandbox paused. Where its NIC is still coming up, it asks again, but does not let who
// wakes the sandbox wait for that. A failure is harmless: Resume succeeds then.
func (p *Pool) pause(b *box) {
	resting, giveUp := context.WithCancel(p.ctx)
	over := make(chan struct{})
	b.pausing = pausing{over, giveUp}
	p.calls.Go(func() {
		defer close(over)
		defer giveUp()
		for {
			err := p.brief(func(ctx context.Context) error {
				_, err := b.node.to.Pause(ctx, &api.PauseRequest{Id: b.id})
				return err
			})
			if status.Code(err) != codes.FailedPrecondition {
				return
			}
			select {
			case <-resting.Done():
				return
			case <-time.After(hurry):
			}
		}
	})
}

// prepare starts a sandbox that no job waits for.
func (p *Pool) prepare(
	b *box, made func() (*api.StartRequest, error), ready func(*api.StartReply) error,
) {
	memory := uint32(b.memory - b.node.overhead) // now, while the owner is here
	p.calls.Go(func() {
		request, err := made()
		if err != nil {
			p.over(b, outcome{err: err, unasked: true})
			return
		}
		request.Id, request.MemoryMib, request.Call = b.id, memory, nil
		ctx, cancel := context.WithTimeout(b.node.to.context(), p.cfg.Start)
		defer cancel()
		reply, err := b.node.to.Start(ctx, request)
		p.refused(b.node, err)
		p.over(b, judged(reply, err, ready))
	})
}

// refused has a node looked at that may have refused a start: it is away, or has less than was
// known.
func (p *Pool) refused(n *node, err error) {
	switch status.Code(err) {
	case codes.Unavailable:
		p.unreachable(n, err)
	case codes.ResourceExhausted:
		n.to.ask()
	}
}

// over takes in the end of a start, of whatever kind.
func (p *Pool) over(b *box, how outcome) {
	p.happen(func(s *state, now time.Time) {
		s.started(b, how, now)
		if b.phase == gone && !b.ended {
			p.stop(b.node, b.id)
		}
	})
}

func (s *stem) request() (*api.StartRequest, error) {
	return &api.StartRequest{Image: s.Image, Env: s.Env}, nil
}

// stop ends a sandbox on its node; where that fails it is tried again when the node is back.
func (p *Pool) stop(n *node, id string) {
	p.calls.Go(func() {
		err := p.brief(func(ctx context.Context) error {
			_, err := n.to.Stop(ctx, &api.StopRequest{Id: id})
			return err
		})
		if err != nil {
			p.happen(func(s *state, _ time.Time) {
				if !s.closed {
					n.orphans = append(n.orphans, id)
				}
			})
		}
	})
}

// brief makes a call that must come to an end also while the pool closes.
func (p *Pool) brief(call func(ctx context.Context) error) error {
	const within = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return call(ctx)
}

// Keep has the demand's group keep so many sandboxes from now on, called or not, until their room
// is needed; less as long as all groups of its namespace would keep more than most. Those that are
// missing are started in free room, also when one has ended. Nobody uses them here: those who
// Acquire do. Where the demand is Scaled, there are no more than those.
func (p *Pool) Keep(demand Demand, least, most int) {
	p.happen(func(s *state, now time.Time) { s.keep(&demand, least, most, now) })
}

// Ready counts the sandboxes of the demand's group that are started and take calls.
func (p *Pool) Ready(demand Demand) int {
	return p.count(demand, func(g *group) int { return g.ready })
}

// Started counts those, and such as will take calls again, when they have rested.
func (p *Pool) Started(demand Demand) int { return p.count(demand, (*group).started) }

func (p *Pool) count(demand Demand, of func(*group) int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.state.groups[key{demand.Namespace, demand.Group, demand.MemoryMiB}]
	if g == nil {
		return 0
	}
	return of(g)
}

// Retire ends the group's sandboxes: the idle ones now, the others after what they run. It keeps
// none any more.
func (p *Pool) Retire(group string) {
	p.happen(func(s *state, now time.Time) {
		s.unleave(func(l Left) bool { return l.Group == group })
		s.retire(maps.Values(s.named[group]), now)
	})
}

// RetireAll does that with all groups of a namespace.
func (p *Pool) RetireAll(namespace string) {
	p.happen(func(s *state, now time.Time) {
		s.unleave(func(l Left) bool { return l.Namespace == namespace })
		s.retire(func(yield func(*group) bool) {
			for k, g := range s.groups {
				if k.namespace == namespace && !yield(g) {
					return
				}
			}
		}, now)
	})
}

// Depth counts the jobs that wait for a sandbox.
func (p *Pool) Depth() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.queue.n
}

// Snapshot says what the pool is doing.
func (p *Pool) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.snapshot(time.Now())
}

// Close refuses the jobs that wait, cancels those under way, stops every sandbox and returns when
// all of that is done.
func (p *Pool) Close() {
	p.cancel()
	p.happen(func(s *state, now time.Time) { s.close(now) })
	<-p.closed
	p.calls.Wait()
	p.timer.Stop()
}

func newID() string {
	var id [8]byte
	rand.Read(id[:]) // cannot fail
	return fmt.Sprintf("fn-%s", hex.EncodeToString(id[:]))
}
