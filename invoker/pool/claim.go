package pool

// No start holds up another: what fits goes. Lest who needs much wait for ever, there are claims. The rule:
//
//	Whoever has waited for longer than patience, while his group has no sandbox that could come to serve him, or while his namespace
//	would still hold no more than the one it is taken from, claims room on a node. There is one claim on a node at a time. As many
//	of the node's busy sandboxes as it takes, of the namespaces that hold most, the longest busy first, take no more jobs and end
//	with those they have; what they leave, and what is free, nobody else gets.
//
// So the one who has waited longest of those with nothing waits for patience, for the claims before his, and for the longest run of a
// sandbox that ends for him; everybody else goes on meanwhile with what is not claimed.

// mostLookedAt is how many of a node's busy sandboxes are looked at for a claim.
const mostLookedAt = 64

// fulfil returns the start of the job that a claim has made room for, or the end of a claim for which no
// room can be made.
func (s *state) fulfil(n *node, c *claim) (step, bool) {
	need := c.group.memory + n.overhead
	all := room{n.free.sandboxes + n.idle.n, n.free.memory + n.idling}
	switch {
	case n.up && all.fits(need):
		return s.start(c.group, n), true
	case !n.up || !anyEnds(c.boxes):
		return step{kind: Unclaim, node: n}, true
	}
	return step{}, false
}

func anyEnds(boxes []*box) bool {
	for _, b := range boxes {
		if b.phase != gone {
			return true
		}
	}
	return false
}

// newClaim returns a claim for the group that has starved longest, or for the first of waits, whose
// namespace holds less than others.
func (s *state) newClaim(waits *line) (step, bool) {
	if l := s.starving.first; l != nil && l.of.waiting.first.of.aged {
		if do, ok := s.claimFor(l.of, false); ok {
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
	var best step
	for _, n := range s.nodes {
		if !n.up || n.claim != nil || !n.capacity.fits(g.memory+n.overhead) {
			continue
		}
		if boxes := n.toEnd(g, fair); boxes != nil && (best.node == nil || len(boxes) < len(best.boxes)) {
			best = step{kind: Claim, group: g, node: n, boxes: boxes}
		}
	}
	return best, best.node != nil
}

// toEnd returns the busy sandboxes that must end for one of the group; nil if ending them is not enough.
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

// next is the sandbox to end: of the namespace that holds most, the longest busy.
func (n *node) next(used map[*box]bool, taken map[*space]int) (next *box) {
	left, most := mostLookedAt, 0
	n.busy.all(func(b *box) bool {
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
	return next
}

func (b *box) space() *space {
	if b.group == nil {
		return nil
	}
	return b.group.space
}
