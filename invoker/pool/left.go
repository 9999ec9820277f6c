package pool

import (
	"slices"
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
	p.happen(func(s *state, now time.Time) { left = s.leaveIdle(now) })
	p.Close()
	return left
}

func (s *state) leaveIdle(now time.Time) (left []Left) {
	for _, n := range s.nodes {
		if !n.up {
			continue
		}
		left = append(left, n.adopting...)
		n.adopting = nil // no look takes them over, or ends them; they keep their room
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
// as it was left. All else ends. What was left and is still being adopted is met again, at a later
// look.
func (p *Pool) meet(s *state, n *node, held []*api.Sandbox, now time.Time) {
	n.awaits(nil)
	var adopting []Left
	for _, h := range held {
		l, known := s.left[[2]string{n.name, h.Id}]
		switch {
		case known && h.State == "adopting":
			adopting = append(adopting, l)
		case !known || !l.becomes(h) || !s.takeOver(n, l, now):
			p.stop(n, h.Id)
		}
	}
	if n.awaits(adopting); len(adopting) > 0 {
		n.to.ask() // soon
	}
}

// awaits notes what the node is still adopting. That takes its room, which the node counts already.
func (n *node) awaits(adopting []Left) {
	for _, memory := range n.awaited {
		n.free = n.free.more(memory)
	}
	n.adopting, n.awaited = adopting, nil
	for _, l := range adopting {
		memory := l.MemoryMiB + n.overhead
		n.free, n.awaited = n.free.less(memory), append(n.awaited, memory)
	}
}

// wereAdopting returns those of the sandboxes held that were being adopted at the last look.
func (n *node) wereAdopting(held []*api.Sandbox) []*api.Sandbox {
	return slices.DeleteFunc(slices.Clone(held), func(h *api.Sandbox) bool {
		return !slices.ContainsFunc(n.adopting, func(l Left) bool { return l.Sandbox == h.Id })
	})
}

// becomes takes in how the node has a sandbox now, and returns whether that may be what was left
// warm. One that was left paused runs if the node's agent has been started again since.
func (l *Left) becomes(h *api.Sandbox) bool {
	wasPaused := l.Paused
	l.Paused = h.State == "paused"
	return int(h.MemoryMib) == l.MemoryMiB && (h.State == "ready" || l.Paused && wasPaused)
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
	if l.Paused {
		b.move(paused, now)
		s.file(b, now)
	}
	return true
}
