package pool

import (
	"cmp"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A Sandbox is one of a group, as Tell tells of it.
type Sandbox struct {
	ID, Node, Namespace, Group string

	Started *api.StartReply // what its node said of its start; nil: that is not over, or not ours
	Ready   bool            // its start is over
	Rests   bool            // whoever probes it says that it is not to be used now
	Gone    bool            // it has ended, or is about to
	Why     error           // its start failed so, or it has ended so
	Client  api.NodeClient  // of its node
}

// Tell has see called with each sandbox of a group: with those that there are, and from then on
// when one is about to be started, when it is ready or rests, and when it goes. see may not call
// the pool, and has to be quick. Only the last one that was given is told.
func (p *Pool) Tell(see func(Sandbox)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.see = see
	for _, n := range p.state.nodes {
		for _, b := range n.boxes {
			p.state.tell(b)
		}
	}
}

// tell tells of a box as it is now.
func (s *state) tell(b *box) {
	if s.see == nil || b.group == nil {
		return
	}
	t := Sandbox{ID: b.id, Node: b.node.name, Namespace: b.group.namespace, Group: b.group.name,
		Ready: b.phase == running || b.phase == idle || b.phase == paused, Gone: b.phase == gone,
		Rests: b.rests}
	select {
	case <-b.ready:
		t.Started, t.Why = b.start.reply, b.start.err
	default:
	}
	t.Why = cmp.Or(t.Why, b.failed)
	if b.node.to != nil {
		t.Client = b.node.to.NodeClient
	}
	s.see(t)
}
