package pool

import "time"

// keep takes in how many sandboxes a group is to have, called or not, where all those of its
// namespace together may keep so many at most. None needs no group.
func (s *state) keep(d *Demand, least, most int, now time.Time) {
	if least == 0 && s.groups[key{d.Namespace, d.Group, d.MemoryMiB}] == nil {
		return
	}
	g := s.groupLike(d)
	g.fresh, g.ready = d.Start, d.Ready
	g.keeps(min(least, max(most-(g.space.least-g.least), 0)))
	g.tries = attempts{}
	s.fileGroup(g, now)
}

func (g *group) keeps(least int) {
	g.space.least += least - g.least
	g.least = least
}

// keptStarted has a start that failed tried again later.
func (s *state) keptStarted(g *group, ok bool, now time.Time) {
	if g.tries.over(ok, now); !ok && g.alarm.pos == 0 {
		s.alarms.set(&g.alarm, g.tries.after)
	}
}

// replenish starts a sandbox of a group that has less than it keeps, in free room.
func (s *state) replenish(now time.Time) (do step, ok bool) {
	s.lacking.all(func(g *group) bool {
		if now.Before(g.tries.after) {
			return true
		}
		if n := s.best(g); n != nil && n.claim == nil && n.free.fits(g.memory+n.overhead) {
			do, ok = step{kind: Keep, group: g, node: n}, true
		}
		return !ok
	})
	return do, ok
}
