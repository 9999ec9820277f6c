package pool

import (
	"cmp"
	"slices"
	"time"
)

// keep takes in how many sandboxes a group is to have, called or not, where all those of its
// namespace together may keep so many at most. None needs no group.
func (s *state) keep(d *Demand, least, most int, now time.Time) {
	if sp := s.spaces[d.Namespace]; sp != nil && sp.most != most {
		sp.most = most
		s.deal(sp, now)
	}
	if least == 0 && s.groups[key{d.Namespace, d.Group, d.MemoryMiB}] == nil {
		return
	}
	g := s.groupLike(d)
	g.space.most = most
	g.fresh, g.judge, g.level = d.Start, d.Ready, least
	s.want(g, least, now)
	s.shrink(g, now)
}

// shrink has those end that idle in a group though it is to have less: those first that rest, then
// those that have had a slot free for longest.
func (s *state) shrink(g *group, now time.Time) {
	if !g.bounds.Scaled {
		return
	}
	for _, c := range []*chain[*box]{&g.resting, &g.open} {
		c.all(func(b *box) bool {
			if b.idles() && g.live > g.level {
				s.file(b, now)
			}
			return g.live > g.level
		})
	}
}

// want has a group keep so many sandboxes, as far as its namespace may, and the others of that what
// it does not take.
func (s *state) want(g *group, least int, now time.Time) {
	if g.wants == 0 || least == 0 {
		g.tries = attempts{}
		s.alarms.set(&g.retry, time.Time{})
	}
	g.wants = least
	if sp := g.space; least > 0 {
		g.keeper.join(&sp.keepers)
	} else {
		g.keeper.leave()
	}
	s.keeps(g, min(least, g.least), now)
	s.deal(g.space, now)
}

// deal takes from a namespace's groups what it may keep no more, from those last that were first to
// want it, and gives them what it may.
func (s *state) deal(sp *space, now time.Time) {
	for l := sp.keepers.last; l != nil && sp.least > sp.most; l = l.prev {
		s.keeps(l.of, max(l.of.least-(sp.least-sp.most), 0), now)
		l.of.short.jump(&sp.short) // the first to get it back
	}
	for sp.short.n > 0 && sp.least < sp.most {
		g := sp.short.first.of
		s.keeps(g, min(g.wants, g.least+sp.most-sp.least), now)
	}
}

func (s *state) keeps(g *group, least int, now time.Time) {
	g.space.least += least - g.least
	g.least = least
	if least < g.wants {
		g.short.join(&g.space.short)
	} else {
		g.short.leave()
	}
	s.fileGroup(g, now)
}

// rests reports whether sandboxes that no job waits for are started later, as one has just failed.
func (g *group) rests(now time.Time) bool { return now.Before(g.tries.after) }

// A retrial is the alarm of a group that rests though it lacks sandboxes.
type retrial struct{ *group }

// keptFailed has sandboxes of a group be started later.
func (s *state) keptFailed(g *group, how outcome, since, now time.Time) {
	if g.wants > 0 {
		g.tries.take(how, since, now)
		s.alarms.set(&g.retry, g.tries.after)
	}
}

// fileLack has a group be among those that lack sandboxes, or not.
func (s *state) fileLack(g *group, lacks bool) {
	if lacks == (g.lacks.in != nil) {
		return
	}
	at, known := s.sizeOf(g)
	if !known {
		z := &size{memory: g.memory, turn: s.counts[Keep]}
		s.lacking = slices.Insert(s.lacking, at, z)
	}
	if z := s.lacking[at]; lacks {
		g.lacks.join(&z.groups)
	} else if g.lacks.leave(); z.groups.n == 0 {
		s.lacking = slices.Delete(s.lacking, at, at+1)
	}
}

func (s *state) sizeOf(g *group) (at int, known bool) {
	return slices.BinarySearchFunc(s.lacking, g.memory, func(z *size, memory int) int {
		return cmp.Compare(z.memory, memory)
	})
}

// passLack lets other sizes, and other groups of this one, go first, after a start of the group
// that nobody waits for.
func (s *state) passLack(g *group) {
	at, known := s.sizeOf(g)
	if !known {
		return
	}
	z := s.lacking[at]
	z.turn = s.counts[Keep]
	if g.lacks.in != nil {
		g.lacks.leave()
		g.lacks.join(&z.groups)
	}
}

// unwanted returns what is free on a node for starts that no job waits for: nothing where a job
// that waits could have a place some time.
func (s *state) unwanted(n *node) room {
	waits := len(s.classes) > 0 && n.capacity.fits(s.classes[0].memory+n.overhead)
	if !n.up || n.claim != nil || waits {
		return room{}
	}
	return n.free
}

// replenish starts a sandbox of a group that has less than it keeps, in free room: of the sizes for
// which there is some, the one whose last start was the longest ago has its turn.
func (s *state) replenish() (step, bool) {
	if len(s.lacking) == 0 {
		return step{}, false
	}
	most := 0
	for _, n := range s.nodes {
		if r := s.unwanted(n); r.sandboxes >= 1 {
			most = max(most, r.memory-n.overhead)
		}
	}
	var turn *size
	for _, z := range s.lacking {
		if z.memory <= most && (turn == nil || z.turn < turn.turn) {
			turn = z
		}
	}
	if turn == nil {
		return step{}, false
	}
	g := turn.groups.first.of
	return step{kind: Keep, group: g, node: s.bestUnwanted(g)}, true
}

// bestUnwanted returns the node to start a sandbox of the group on that no job waits for, or nil.
func (s *state) bestUnwanted(g *group) (best *node) {
	for _, n := range s.nodes {
		able := s.unwanted(n).fits(g.memory + n.overhead)
		if able && (best == nil || n.better(best, g)) {
			best = n
		}
	}
	return best
}
