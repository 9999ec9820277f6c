package pool

import "time"

// A start never waits for another that does not fit. Claims keep large jobs from starving. The
// rule:
//
//	A job claims room on a node when it has waited for longer than patience, and either its group
//	has no sandbox that could come to serve it, or its namespace would still hold no more than the
//	one from which the room is taken. A node has one claim at a time. As many of its busy
//	sandboxes as are needed, of the namespaces that hold most, take no more jobs and end with
//	those they have. As many of the idle ones as are needed besides end at once. Nobody else gets
//	what they leave, nor what is needed of what is free. Of a namespace's sandboxes the longest
//	busy goes first, and those with endless leases go last: such a lease is told to end.
//
// So of the jobs whose group has nothing, the one that has waited longest waits for patience, for
// the claims before its own, and for the longest run of a sandbox that ends for it. All others go
// on meanwhile in what is not claimed.

// mostLookedAt bounds how many of a node's busy sandboxes, of either sort, a claim looks at.
const mostLookedAt = 64

// fulfil returns the start of the job that a claim has made room for, or the end of a claim for
// which no room can be made.
func (s *state) fulfil(n *node, c *claim) (step, bool) {
	need := c.group.memory + n.overhead
	switch {
	case n.up && n.idle.and(n.free).fits(need):
		return s.start(c.group, n), true
	case !n.up || c.coming.sandboxes == 0:
		return step{kind: Unclaim, node: n}, true
	}
	return step{}, false
}

// claimable returns the memory of the largest sandbox that could have a claim on some node.
func (s *state) claimable() (most int) {
	for _, n := range s.nodes {
		if n.up && n.claim == nil && n.capacity.sandboxes >= 1 {
			most = max(most, n.capacity.memory-n.overhead)
		}
	}
	return most
}

// starve has a group be among those of its class that starve.
func (g *group) starve(now time.Time) {
	if c := &g.class.starving; g.turn.in != c {
		g.turn.join(c)
		g.starves = now
	}
}

// starved returns the group that has starved longest, of those that need so much memory at most.
func (s *state) starved(most int) (first *group) {
	for _, c := range s.classes {
		if c.memory > most {
			break
		}
		l := c.starving.first
		if l != nil && (first == nil || l.of.starves.Before(first.starves)) {
			first = l.of
		}
	}
	return first
}

// newClaim returns a claim for the group that has starved longest, of those for which a node can
// make room, or for the first of waits, whose namespace holds less than others. Most is what a node
// can hold. Where there is no room to be made for one group, there is none for a larger one.
func (s *state) newClaim(most int, waits *line) (step, bool) {
	for g := s.starved(most); g != nil; g = s.starved(g.memory - 1) {
		if do, ok := s.claimFor(g, false); ok {
			return do, true
		}
	}
	if waits != nil {
		return s.claimFor(waits.groups.first.of, true)
	}
	return step{}, false
}

// claimFor finds the node that has to end the least for a sandbox of the group.
func (s *state) claimFor(g *group, fair bool) (step, bool) {
	best := step{kind: Claim, group: g}
	for _, n := range s.nodes {
		if !n.up || n.claim != nil || !n.capacity.fits(g.memory+n.overhead) {
			continue
		}
		boxes := n.toEnd(g, fair)
		if boxes != nil && (best.node == nil || len(boxes) < len(best.boxes)) {
			best.node, best.boxes = n, boxes
		}
	}
	if best.node == nil {
		return step{}, false
	}
	best.boxes = best.node.withIdle(best.boxes, g.memory+best.node.overhead)
	return best, true
}

// withIdle adds to those that end as many of the idle ones as are needed besides, in the order in
// which they would be evicted.
func (n *node) withIdle(end []*box, need int) []*box {
	have := n.free
	for _, b := range end {
		have = have.more(b.memory)
	}
	for _, c := range []*chain[*box]{&n.idle.stems, &n.idle.kept, &n.idle.others} {
		c.all(func(b *box) bool {
			if have.fits(need) {
				return false
			}
			end, have = append(end, b), have.more(b.memory)
			return true
		})
	}
	return end
}

// toEnd returns the busy sandboxes that must end for one of the group, beside all that idle; nil if
// ending them is not enough.
func (n *node) toEnd(g *group, fair bool) (boxes []*box) {
	need := g.memory + n.overhead
	have := n.avail()
	taken := map[*space]int{}
	used := map[*box]bool{}
	for !have.fits(need) {
		b := n.next(used, taken)
		if b == nil {
			return nil
		}
		from := b.space()
		if fair && (from == nil || from.held-taken[from]-b.memory < g.space.held+need) {
			return nil
		}
		taken[from] += b.memory
		used[b] = true
		boxes = append(boxes, b)
		have = have.more(b.memory)
	}
	return boxes
}

// next returns the sandbox to end: of the namespace that holds most, the longest busy.
func (n *node) next(used map[*box]bool, taken map[*space]int) (next *box) {
	most := 0
	for _, sort := range []*chain[*box]{&n.busy, &n.endless} {
		left := mostLookedAt
		sort.all(func(b *box) bool {
			if used[b] {
				return true
			}
			holds := 0
			if from := b.space(); from != nil {
				holds = from.held - taken[from]
			}
			if next == nil || holds > most {
				next, most = b, holds
			}
			left--
			return left > 0
		})
	}
	return next
}

func (b *box) space() *space {
	if b.group == nil {
		return nil
	}
	return b.group.space
}
