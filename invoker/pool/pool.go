package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Node is what the pool asks of a node agent; api.NodeClient is one.
type Node interface {
	Start(ctx context.Context, in *api.StartRequest, opts ...grpc.CallOption) (*api.StartReply, error)
	Run(ctx context.Context, in *api.RunRequest, opts ...grpc.CallOption) (*api.RunReply, error)
	Stop(ctx context.Context, in *api.StopRequest, opts ...grpc.CallOption) (*api.StopReply, error)
	Status(ctx context.Context, in *api.StatusRequest, opts ...grpc.CallOption) (*api.StatusReply, error)
}

// Config says how the pool uses its node.
type Config struct {
	KeepAlive time.Duration // how long a sandbox idles before it is stopped
	Wait      time.Duration // how long a job waits for a sandbox, in the pool's queue and the node's together
	Start     time.Duration // how long a start may take after that wait
}

// Refused is the error of a job that got no sandbox, and why.
type Refused struct{ Why string }

func (r *Refused) Error() string { return "no sandbox for it: " + r.Why }

// A Pool places jobs on the sandboxes of one node.
type Pool struct {
	node   Node
	cfg    Config
	events chan func(s *state, now time.Time)
	closed chan struct{}  // the owner has ended
	calls  sync.WaitGroup // stops and looks under way
	ctx    context.Context
	cancel context.CancelFunc // ends what jobs have under way on the node
}

// A grant is what a waiter gets: a sandbox, to be started first if cold, or a refusal.
type grant struct {
	box  *box
	cold bool
	err  error
}

// New returns a running pool, which has asked its node how much it holds; Close ends it.
func New(cfg Config, node Node) *Pool {
	p := &Pool{node: node, cfg: cfg, events: make(chan func(*state, time.Time)), closed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	s := &state{capacity: room{unbounded, unbounded}, keepAlive: cfg.KeepAlive, looking: true}
	p.look()(s, time.Now())
	go p.own(s)
	return p
}

// own is the owner: it alone touches the state.
func (p *Pool) own(s *state) {
	defer close(p.closed)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !s.closed || len(s.boxes) > 0 || len(s.queue) > 0 {
		select {
		case event := <-p.events:
			event(s, time.Now())
		case <-timer.C:
		}
		now := time.Now()
		for _, do := range decide(s, now) {
			p.apply(s, do, now)
		}
		if len(s.queue) > 0 {
			p.lookAgain(s, now)
		}
		if next := s.next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// lookAgain has the node asked for its capacity, which changes when a VF is quarantined or healed. It is asked when jobs wait or were
// refused for want of room, not more often than once a second.
func (p *Pool) lookAgain(s *state, now time.Time) {
	const pause = time.Second
	if s.looking || s.closed || now.Before(s.looked.Add(pause)) {
		return
	}
	s.looking = true
	p.calls.Go(func() { p.tell(p.look()) })
}

// look asks the node for its capacity and returns the event that takes in the answer; without one the pool believes what it did.
func (p *Pool) look() (event func(s *state, now time.Time)) {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	status, err := p.node.Status(ctx, &api.StatusRequest{})
	return func(s *state, now time.Time) {
		s.looking, s.looked = false, now
		if err == nil {
			s.capacity, s.overhead = capacity(status), int(status.OverheadMib)
		}
	}
}

// capacity is what the node can hold: memory, and as many sandboxes as it has VFs in order, where it has VFs at all.
func capacity(status *api.StatusReply) room {
	c := room{unbounded, unbounded}
	if status.MemoryMib > 0 {
		c.memory = int(min(status.MemoryMib, unbounded))
	}
	if len(status.Vfs) > 0 {
		c.sandboxes = 0
	}
	for _, vf := range status.Vfs {
		if vf.State != "quarantined" && vf.State != "gone" {
			c.sandboxes++
		}
	}
	return c
}

func (p *Pool) apply(s *state, do step, now time.Time) {
	if do.waiter != nil {
		s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool { return w == do.waiter })
	}
	switch {
	case do.why != "":
		do.waiter.grant <- grant{err: &Refused{do.why}}
	case do.waiter == nil:
		p.drop(s, do.box, now)
	case do.box != nil:
		do.box.move(running, now)
		do.waiter.grant <- grant{box: do.box}
	default:
		b := &box{id: newID(), group: do.waiter.group, memory: do.waiter.memory, phase: starting, since: now}
		s.boxes = append(s.boxes, b)
		do.waiter.grant <- grant{box: b, cold: true}
	}
}

// drop forgets a sandbox and stops it on the node. Its place counts as free at once; whoever is started in it waits in the node's
// queue for the VF to come back.
func (p *Pool) drop(s *state, b *box, now time.Time) {
	b.move(gone, now)
	s.boxes = slices.DeleteFunc(s.boxes, func(other *box) bool { return other == b })
	p.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		// A sandbox that cannot be stopped because its node is out of reach ends with it, or is found by it when it comes back.
		_, _ = p.node.Stop(ctx, &api.StopRequest{Id: b.id})
	})
}

const stopTimeout = 30 * time.Second

// tell has the owner take in an event; it reports false once the pool has closed.
func (p *Pool) tell(event func(s *state, now time.Time)) bool {
	select {
	case p.events <- event:
		return true
	case <-p.closed:
		return false
	}
}

// Retire ends the group's sandboxes: the idle ones now, the others after what they run.
func (p *Pool) Retire(group string) {
	p.tell(func(s *state, _ time.Time) {
		for _, b := range s.boxes {
			if b.group == group {
				b.retired = true
			}
		}
	})
}

// Depth counts the jobs that wait for a sandbox.
func (p *Pool) Depth() int {
	depth := make(chan int, 1)
	if !p.tell(func(s *state, _ time.Time) { depth <- len(s.queue) }) {
		return 0
	}
	return <-depth
}

// Close refuses the jobs that wait, cancels those under way, stops every sandbox and returns when all of that is done.
func (p *Pool) Close() {
	p.tell(func(s *state, _ time.Time) { s.closed = true })
	p.cancel()
	<-p.closed
	p.calls.Wait()
}

func newID() string {
	var id [8]byte
	rand.Read(id[:]) // cannot fail
	return fmt.Sprintf("fn-%s", hex.EncodeToString(id[:]))
}
