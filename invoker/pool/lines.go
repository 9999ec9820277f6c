package pool

import (
	"cmp"
	"container/heap"
	"slices"
)

// Room that more than one namespace could use goes to the one whose busy sandboxes hold the least
// memory, and of equals to the one whose job has waited longest. So under overload namespaces come
// to hold the same, whatever they ask for; what one does not want the others share.

type lines []*line

func (h lines) Len() int           { return len(h) }
func (h lines) Less(i, j int) bool { return h[i].before(h[j]) }
func (h lines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *lines) Push(x any) {
	l := x.(*line)
	l.pos = len(*h)
	*h = append(*h, l)
}
func (h *lines) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	return l
}

func (h *lines) fix(l *line) { heap.Fix(h, l.pos) }

func (l *line) before(other *line) bool {
	if l.space.held != other.space.held {
		return l.space.held < other.space.held
	}
	return l.head().number < other.head().number
}

// head is the waiter whose turn it is.
func (l *line) head() *waiter { return l.groups.first.of.waiting.first.of }

// fileLine has a group stand in its line, or not.
func (s *state) fileLine(g *group, stands bool) {
	switch standing := g.class != nil; {
	case stands && !standing:
		s.stand(g)
	case stands:
		g.class.lines.fix(s.lineOf(g))
	case standing:
		s.leaveLine(g)
	}
}

func (s *state) stand(g *group) {
	g.class = s.classOf(g)
	if l := s.lineOf(g); l != nil {
		g.inLine.join(&l.groups)
		g.class.lines.fix(l)
		return
	}
	l := &line{space: g.space, class: g.class}
	g.inLine.join(&l.groups)
	g.space.lines = append(g.space.lines, l)
	heap.Push(&g.class.lines, l)
}

func (s *state) leaveLine(g *group) {
	l := s.lineOf(g)
	c := g.class
	g.class = nil
	if l.groups.n > 1 {
		g.inLine.leave()
		c.lines.fix(l)
		return
	}
	g.inLine.leave() // only now: where nobody stands there is no head to compare
	remove(&c.lines, l)
	g.space.lines = slices.DeleteFunc(g.space.lines, func(other *line) bool { return other == l })
	if len(c.lines) == 0 {
		s.classes = slices.DeleteFunc(s.classes, func(other *class) bool { return other == c })
	}
}

// remove takes l, which has no head any more, out of the heap.
func remove(h *lines, l *line) {
	last := len(*h) - 1
	at := l.pos
	h.Swap(at, last)
	h.Pop()
	if at < last {
		heap.Fix(h, at)
	}
}

// pass lets the other groups of the line go first.
func (s *state) pass(g *group) {
	if l := s.lineOf(g); l.groups.n > 1 {
		g.inLine.leave()
		g.inLine.join(&l.groups)
		l.class.lines.fix(l)
	}
}

func (s *state) lineOf(g *group) *line {
	for _, l := range g.space.lines {
		if l.class == g.class {
			return l
		}
	}
	return nil
}

func (s *state) classOf(g *group) *class {
	stem := s.stemOf(g)
	at, _ := slices.BinarySearchFunc(s.classes, g.memory, func(c *class, memory int) int {
		return cmp.Compare(c.memory, memory)
	})
	for ; at < len(s.classes) && s.classes[at].memory == g.memory; at++ {
		if s.classes[at].stem == stem {
			return s.classes[at]
		}
	}
	c := &class{memory: g.memory, stem: stem}
	s.classes = slices.Insert(s.classes, at, c)
	return c
}

// stemOf is the kind of stem cell that would do for the group, or nil.
func (s *state) stemOf(g *group) *stem {
	for _, st := range s.stems {
		if g.ofStem && st.Image == g.image && st.MemoryMiB == g.memory {
			return st
		}
	}
	return nil
}
