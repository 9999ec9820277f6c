package pool

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A remote calls a node. Its context ends what is under way there when the node is given up.
type remote struct {
	api.NodeClient
	asked chan struct{} // of one: somebody would like to know what the node has now

	// Only look uses these.
	met      bool // it has answered: what it held before is not ours
	searched bool // what had ended by then is known

	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
}

func newRemote(n api.NodeClient, parent context.Context) *remote {
	r := &remote{NodeClient: n, asked: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(parent)
	return r
}

func (r *remote) context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// hangUp ends every call that is under way.
func (r *remote) hangUp(parent context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel()
	r.ctx, r.cancel = context.WithCancel(parent)
}

const (
	heartbeat = 5 * time.Second // between looks at a node
	hurry     = time.Second     // the same, while jobs wait for what the node may have got
	lookFor   = 3 * time.Second // how long a look may take
)

// nudge has the nodes looked at soon: what they hold changes when a VF is quarantined or healed.
func (p *Pool) nudge() {
	for _, n := range p.state.nodes {
		n.to.ask()
	}
}

func (r *remote) ask() {
	select {
	case r.asked <- struct{}{}:
	default:
	}
}

// watch looks at a node until the pool closes.
func (p *Pool) watch(n *node) {
	defer n.to.hangUp(p.ctx)
	for {
		regular := time.NewTimer(heartbeat)
		select {
		case <-p.ctx.Done():
			regular.Stop()
			return
		case <-time.After(hurry):
		}
		select {
		case <-p.ctx.Done():
		case <-n.to.asked:
		case <-regular.C:
		}
		regular.Stop()
		if p.ctx.Err() != nil {
			return
		}
		p.look(n)
	}
}

// look asks a node what it has and what becomes of that.
func (p *Pool) look(n *node) {
	ctx, cancel := context.WithTimeout(p.ctx, lookFor)
	defer cancel()
	met := n.to.met
	reply, err := n.to.Status(ctx, &api.StatusRequest{Brief: met})
	if p.ctx.Err() != nil {
		return
	}
	p.happen(func(s *state, now time.Time) {
		if s.closed { // what the node has is left to the next pool
			return
		}
		if err != nil {
			s.silent(n, n.name+": "+status.Convert(err).Message(), now)
			n.to.ask() // soon
			return
		}
		s.looked(n, viewOf(reply), now)
		if !met {
			p.meet(s, n, reply.Sandboxes, now)
		}
		for _, id := range n.orphans {
			p.stop(n, id)
		}
		n.orphans = nil
	})
	if err != nil {
		return
	}
	if n.to.met = true; !n.to.searched {
		// what ended while the node answered was not known here yet
		n.to.searched = p.findEnded(p.ctx, n) == nil
	}
}

// viewOf returns what the node can hold: memory, and as many sandboxes as it has VFs in order,
// where it has VFs at all.
func viewOf(reply *api.StatusReply) view {
	v := view{
		capacity: room{unbounded, unbounded}, overhead: int(reply.OverheadMib),
		hasVFs: len(reply.Vfs) > 0, draining: reply.Draining,
	}
	if reply.MemoryMib > 0 {
		v.capacity.memory = int(min(reply.MemoryMib, unbounded))
	}
	if v.hasVFs {
		v.capacity.sandboxes = reply.SoundVFs()
	}
	if len(reply.Images) > 0 {
		v.images = map[string]bool{}
		for _, image := range reply.Images {
			v.images[image] = true
		}
	}
	return v
}
