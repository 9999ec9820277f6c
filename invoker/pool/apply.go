package pool

import (
	"fmt"
	"time"
)

// apply does a step to the state. What it takes outside of it — telling the job, calling the node —
// is the owner's.
func (s *state) apply(do *step, now time.Time) {
	s.counts[do.kind]++
	switch do.kind {
	case Warm, Warming:
		if do.kind == Warm {
			do.box.group.served(do.box)
		}
		s.give(do.box, do.waiter, now)
	case Prewarm:
		s.specialise(do.box, do.waiter.group, now)
		s.give(do.box, do.waiter, now)
	case Cold:
		g := do.waiter.group
		if st := s.stemOf(g); st != nil {
			st.cold++
		}
		do.box = s.newBox(s.newID(), do.node, g, nil, now)
		s.give(do.box, do.waiter, now)
		s.hadTurn(g, now)
	case Evict, Expire:
		s.drop(do.box, now)
	case Refuse:
		s.leave(do.waiter, now)
	case Claim:
		c := &claim{group: do.group, boxes: do.boxes}
		do.node.claim, do.group.claim = c, do.node
		for _, b := range do.boxes {
			b.claimed = true
			c.coming = c.coming.more(b.memory)
			s.file(b, now)
		}
		s.fileGroup(do.group, now)
	case Unclaim:
		s.dropClaim(do.node, now)
	case Pause:
		do.box.move(paused, now)
		s.file(do.box, now)
	case Stem:
		do.box = s.newBox(s.newID(), do.node, nil, do.stem, now)
	case Revive:
		do.box = s.newBox(s.newID(), do.node, do.group, nil, now)
		s.alarms.set(&do.group.alarm, now.Add(s.policy.Remembers()))
	case Keep:
		do.box = s.newBox(s.newID(), do.node, do.group, nil, now)
		do.box.kept = true
		s.hadTurn(do.group, now)
		s.passLack(do.group)
	case Note:
		s.pastDue(do.alarm, now)
	}
}

// hadTurn lets others of the namespace go first, after a start of the group.
func (s *state) hadTurn(g *group, now time.Time) {
	if g.claim != nil {
		s.dropClaim(g.claim, now)
	}
	if g.class != nil {
		s.pass(g)
	}
}

// give gives a waiter a slot of a box.
func (s *state) give(b *box, w *waiter, now time.Time) {
	s.leave(w, now)
	b.used++
	if w.endless {
		w.inQueue.join(&b.endless)
	}
	w.group.jobs++
	if b.idles() {
		b.move(running, now)
	}
	s.file(b, now)
}

// newBox takes a place on a node for a group or, where that is nil, for a stem cell.
func (s *state) newBox(id string, n *node, g *group, st *stem, now time.Time) *box {
	b := &box{
		id: id, node: n, group: g, stem: st, phase: starting, since: now, asked: now,
		ready: make(chan struct{}),
	}
	b.place.of, b.open.of, b.mine.of, b.alarm.of = b, b, b, b
	if g != nil {
		b.memory, b.slots = g.memory+n.overhead, g.slots
		b.mine.join(&g.members)
	} else {
		b.memory = st.MemoryMiB + n.overhead
		b.slots = 1
		st.on[n]++
	}
	n.boxes[b.id] = b
	n.free = n.free.less(b.memory)
	s.file(b, now)
	s.tell(b)
	return b
}

// specialise makes a stem cell one of a group, which it is about to be given the function of.
func (s *state) specialise(b *box, g *group, now time.Time) {
	b.stem.on[b.node]--
	b.group, b.slots = g, g.slots
	b.mine.join(&g.members)
	b.ready, b.asked = make(chan struct{}), now
	b.move(starting, now)
	s.tell(b)
}

// drop forgets a sandbox. Its place counts as free at once; whoever is started in it waits in the
// node's queue for the VF to come back.
func (s *state) drop(b *box, now time.Time) {
	b.move(gone, now)
	delete(b.node.boxes, b.id)
	b.node.free = b.node.free.more(b.memory)
	if b.claimed {
		b.node.claim.coming = b.node.claim.coming.less(b.memory)
	}
	b.mine.leave()
	if b.group == nil {
		b.stem.on[b.node]--
	}
	s.file(b, now)
	s.tell(b)
}

// pastDue takes in that time has come for what an alarm is about, where that is all there is to do.
func (s *state) pastDue(a *alarm, now time.Time) {
	s.alarms.set(a, time.Time{})
	switch of := a.of.(type) {
	case *waiter:
		of.aged = true
		s.alarms.set(a, of.deadline)
		s.fileGroup(of.group, now)
	case *box:
		if at := s.boxDue(of); !at.IsZero() && !now.Before(at) {
			of.since, of.kept = now, true // its group alone keeps it, and it idles anew
			s.file(of, now)
		}
		s.alarms.set(a, s.boxDue(of))
	case *group:
		if last := of.ended.Add(s.policy.Remembers()); now.Before(last) {
			s.alarms.set(a, last)
		}
		s.fileGroup(of, now)
	case retrial:
		s.fileGroup(of.group, now)
	case *stem:
		s.resize(of, now)
	case *node:
		s.eachBox(of, func(b *box) {
			of.orphans = append(of.orphans, b.id)
			b.failed = fmt.Errorf("its node is out of reach for too long: %s", of.down)
			s.drop(b, now)
		})
	}
}
