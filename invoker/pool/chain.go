package pool

import (
	"container/heap"
	"time"
)

// A chain is a list that its members can leave from the middle. A link is in one chain at most.
type chain[T any] struct {
	first, last *link[T]
	n           int
}

type link[T any] struct {
	of         T
	in         *chain[T]
	prev, next *link[T]
}

// join appends l to c, having it leave where it was; it keeps its place where it is in c already.
// With a nil chain it only leaves.
func (l *link[T]) join(c *chain[T]) {
	if l.in == c {
		return
	}
	l.leave()
	if c == nil {
		return
	}
	l.in, l.prev = c, c.last
	if c.last != nil {
		c.last.next = l
	} else {
		c.first = l
	}
	c.last = l
	c.n++
}

// jump puts l at the head of c.
func (l *link[T]) jump(c *chain[T]) {
	l.leave()
	l.in, l.next = c, c.first
	if c.first != nil {
		c.first.prev = l
	} else {
		c.last = l
	}
	c.first = l
	c.n++
}

func (l *link[T]) leave() {
	c := l.in
	if c == nil {
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		c.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		c.last = l.prev
	}
	c.n--
	l.in, l.prev, l.next = nil, nil, nil
}

// all are the members in order; the one that is visited may leave.
func (c *chain[T]) all(visit func(T) bool) {
	for l := c.first; l != nil; {
		next := l.next
		if !visit(l.of) {
			return
		}
		l = next
	}
}

// An alarm is when something is to be looked at again: a *waiter, a *box, a *group, a retrial, a
// *node or a *stem.
type alarm struct {
	at  time.Time
	of  any
	pos int // in the heap, counted from 1; 0: not set
}

type alarms []*alarm

func (h alarms) Len() int           { return len(h) }
func (h alarms) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}
func (h *alarms) Push(x any) {
	a := x.(*alarm)
	*h = append(*h, a)
	a.pos = len(*h)
}
func (h *alarms) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last], *h, a.pos = nil, (*h)[:last], 0
	return a
}

// set has a go off at that time; the zero time clears it.
func (h *alarms) set(a *alarm, at time.Time) {
	switch {
	case at.IsZero() && a.pos == 0:
	case at.IsZero():
		heap.Remove(h, a.pos-1)
	case a.pos == 0:
		a.at = at
		heap.Push(h, a)
	default:
		a.at = at
		heap.Fix(h, a.pos-1)
	}
}
