package pool

import (
	"maps"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A Left is a sandbox that a pool leaves idle on its node for the pool after it.
type Left struct {
	Node      string
	Sandbox   string
	Namespace string
	Group     string
	Image     string
	MemoryMiB int
	Slots     int
	Paused    bool
}

// Leave closes the pool, but for sandboxes that idle and have a function: they stay.
func (p *Pool) Leave() (left []Left) {
	p.happen(func(s *state, now time.Time) {
		left = s.leaveIdle(now)
		s.close(now) // in the same event: nothing is started in the room of what is left
	})
	p.Close()
	return left
}

// leaveIdle forgets what is to stay. What was left on a node that has not been met yet is left once
// more, and so is what idles on a node that is out of reach: it may be back.
func (s *state) leaveIdle(now time.Time) (left []Left) {
	for _, n := range s.nodes {
		for at, l := range s.left {
			if at[0] == n.name {
				left = append(left, l)
			}
		}
		if n.draining {
			continue
		}
		s.eachBox(n, func(b *box) {
			if !n.idle.has(b) || b.group == nil {
				return
			}
			left = append(left, Left{
				Node: n.name, Sandbox: b.id, Namespace: b.group.namespace, Group: b.group.name,
				Image: b.group.image, MemoryMiB: b.group.memory, Slots: b.slots,
				Paused: b.phase == paused,
			})
			s.drop(b, now)
		})
	}
	return left
}

// meet takes in what a node held when the pool met it: what the pool before it left there, if it is
// as it was left. All else ends.
func (p *Pool) meet(s *state, n *node, held []*api.Sandbox, now time.Time) {
	for _, adopting := range []bool{false, true} { // a group may have no room for all
		for _, h := range held {
			if (h.State == "adopting") != adopting {
				continue
			}
			l, known := s.left[[2]string{n.name, h.Id}]
			if !known || !l.becomes(h) || !s.takeOver(n, l, now) {
				p.stop(n, h.Id)
			} else if adopting {
				n.boxes[h.Id].comesLast(n)
			}
		}
	}
	s.unleave(func(l Left) bool { return l.Node == n.name })
}

// comesLast has a sandbox called after the others of its group, unless calls go round, and evicted
// before those that are idle as it is.
func (b *box) comesLast(n *node) {
	if b.open.in != nil {
		b.open.jump(b.open.in) // the last is called first
	}
	if n.idle.has(b) {
		b.place.jump(b.place.in)
	}
}

// unleave forgets what was left.
func (s *state) unleave(which func(Left) bool) {
	maps.DeleteFunc(s.left, func(_ [2]string, l Left) bool { return which(l) })
}

// becomes takes in how the node has a sandbox now, and returns whether that may be what was left
// warm. One that was left paused runs if the node's agent has been started again since. One that
// the agent still adopts takes calls, which wait for that.
func (l *Left) becomes(h *api.Sandbox) bool {
	wasPaused := l.Paused
	l.Paused = h.State == "paused"
	good := h.State == "ready" || h.State == "adopting" || l.Paused && wasPaused
	return good && int(h.MemoryMib) == l.MemoryMiB
}

// takeOver takes in a sandbox that was left warm, unless its group has as many as it may. A group
// that there is by now, as the node is met late, stays as its last demand described it.
func (s *state) takeOver(n *node, l Left, now time.Time) bool {
	g := s.groups[key{l.Namespace, l.Group, l.MemoryMiB}]
	if g != nil && g.full() {
		return false
	}
	if g == nil {
		g = s.groupOf(&Demand{
			Namespace: l.Namespace, Group: l.Group, Image: l.Image, MemoryMiB: l.MemoryMiB,
			Concurrency: l.Slots,
		}, now)
	}
	b := s.newBox(l.Sandbox, n, g, nil, now)
	s.started(b, outcome{}, now)
	b.begun = time.Time{} // long ago: where it is not adopted, its program is not to blame
	if l.Paused {
		b.move(paused, now)
		s.file(b, now)
	}
	return true
}
