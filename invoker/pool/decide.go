package pool

import (
	"cmp"
	"fmt"
	"time"
)

// A Kind of decision, by what it does.
type Kind string

const (
	Warm    Kind = "warm"    // a job gets a free slot of a sandbox that is ready
	Warming Kind = "warming" // a job gets a free slot of a sandbox that another job starts
	Prewarm Kind = "prewarm" // a job gives its function to a stem cell
	Cold    Kind = "cold"    // a job starts a sandbox
	Evict   Kind = "evict"   // an idle sandbox ends for a job
	Refuse  Kind = "refused" // a job gets none
	Claim   Kind = "claim"   // room is being made for a job that has waited too long
	Unclaim Kind = "unclaim" // that room is not to be had
	Expire  Kind = "expire"  // an idle sandbox has been kept long enough, or is wanted no more
	Pause   Kind = "pause"
	Stem    Kind = "stem"   // a stem cell is started
	Revive  Kind = "revive" // a sandbox is started for a function that is about to be called
	Keep    Kind = "keep"   // a sandbox is started for a group that keeps so many
	Note    Kind = "note"   // time has passed for what alarm says; nothing is to be done outside
)

// Kinds lists the kinds that are counted.
var Kinds = []Kind{Warm, Warming, Prewarm, Cold, Evict, Refuse, Claim, Expire, Pause, Stem, Revive,
	Keep}

// A step is one thing to do and why. What it does it to depends on its kind.
type step struct {
	kind   Kind
	waiter *waiter
	box    *box
	node   *node
	group  *group
	stem   *stem
	alarm  *alarm
	boxes  []*box // that end for a claim, the busy ones and those that idle
	why    string
}

// decide returns what to do now, one step at a time: it changes nothing, and is called again when
// its step has been applied, until there is none. In this order:
//
//	alarms                waits and idling that are over, pauses
//	endings               sandboxes that are retired, claimed, or on a node that drains
//	warm, warming         a group with a waiter and a free slot: it needs no room
//	claims                room that was made for a job that waited too long
//	prewarm, cold, evict  there is free or idle room, or a stem cell: of the jobs for which it is
//	                      enough, the one whose turn it is gets it
//	new claims            a job that has waited for longer than patience has a node make room
//	kept, stem cells      in free room that no job which waits could ever have
func decide(s *state, now time.Time) (step, bool) {
	if len(s.alarms) > 0 && !now.Before(s.alarms[0].at) {
		return s.due(s.alarms[0], now), true
	}
	if l := s.finished.first; l != nil {
		return l.of.finish(), true
	}
	if s.closed {
		return s.closing()
	}
	if g := s.servable.first; g != nil {
		return serve(g.of), true
	}
	for _, n := range s.nodes {
		if c := n.claim; c != nil {
			if do, ok := s.fulfil(n, c); ok {
				return do, true
			}
		}
	}
	if len(s.classes) > 0 {
		if do, ok := s.makePlace(now); ok {
			return do, true
		}
	}
	if do, ok := s.replenish(); ok {
		return do, true
	}
	return s.backfill(now)
}

// finish returns the end of a sandbox that idles and is to end.
func (b *box) finish() step {
	if b.claimed {
		why := fmt.Sprintf("its room is claimed by %s", b.node.claim.group.name)
		return step{kind: Evict, box: b, why: why}
	}
	return step{kind: Expire, box: b, why: "it is wanted no more"}
}

func (s *state) closing() (step, bool) {
	if w := s.queue.first; w != nil {
		return step{kind: Refuse, waiter: w.of, why: "the invoker shuts down"}, true
	}
	return step{}, false
}

// serve gives a group's first waiter a slot of the sandbox that was the last to have one free: the
// likeliest to be warm in every cache, and it lets the others expire.
func serve(g *group) step {
	w := g.waiting.first.of
	if g.open.n > 0 {
		return step{kind: Warm, waiter: w, box: g.whoseTurn().of}
	}
	return step{kind: Warming, waiter: w, box: g.warming.first.of}
}

// whoseTurn returns whose turn it is of the sandboxes that have a slot free: the last one's, but
// where they are never full and it would get everything. There jobs that overlap go round, from the
// last one on, to as many as there are to be, or as there are jobs: those beyond run empty and end,
// or sleep on. One that sleeps is woken where all that are awake have one.
func (g *group) whoseTurn() *link[*box] {
	around := g.bounds.Scaled && g.round < min(g.level, g.jobs+1) && g.next != nil &&
		g.next.in == &g.open && g.next.of.slots >= Endless &&
		(g.next.of.phase != paused || g.jobs > g.round)
	if around {
		return g.next
	}
	return g.open.last
}

// served has the next in the round be the one before.
func (g *group) served(b *box) {
	if &b.open == g.open.last {
		g.round = 0
	}
	g.round++
	g.next = b.open.prev
}

// Endless is the Concurrency of a demand whose sandboxes take any number of jobs at once.
const Endless = 1 << 20

// makePlace finds a sandbox for somebody who has none to wait for.
func (s *state) makePlace(now time.Time) (step, bool) {
	if do, ok := s.unplaceable(); ok {
		return do, true
	}
	most := 0
	for _, n := range s.nodes {
		if r := n.avail(); n.up && r.sandboxes >= 1 {
			most = max(most, r.memory-n.overhead)
		}
	}
	claimable := s.claimable()
	var turn, waits *line // for what there is room for, and for what a node could make some
	for _, c := range s.classes {
		l := c.lines[0]
		if c.memory <= most || c.stem != nil && c.stem.idle.n > 0 {
			if turn == nil || l.before(turn) {
				turn = l
			}
			continue
		}
		late := l.groups.first.of.claim == nil && l.head().aged
		if c.memory <= claimable && late && (waits == nil || l.before(waits)) {
			waits = l
		}
	}
	if turn != nil {
		return s.start(turn.groups.first.of, nil), true
	}
	return s.newClaim(claimable, waits)
}

// start has a group's first waiter start a sandbox on that node, or where it is best; a stem cell
// is better than that. Where the group is scaled and has one, the waiter takes whichever is free
// first, so the start is nobody's.
func (s *state) start(g *group, on *node) step {
	w := g.waiting.first.of
	if st := g.class.stem; st != nil && st.idle.n > 0 {
		return step{kind: Prewarm, waiter: w, box: st.idle.last.of}
	}
	if on == nil {
		on = s.best(g)
	}
	room := on.spare()
	if on == g.claim {
		room = on.free
	}
	if !room.fits(g.memory + on.overhead) {
		b := on.idle.first()
		return step{kind: Evict, box: b, why: fmt.Sprintf("its room is needed for %s", g.name)}
	}
	if g.bounds.Scaled && g.live > 0 {
		return step{kind: Keep, group: g, node: on}
	}
	return step{kind: Cold, waiter: w, node: on}
}

// best returns the node to start a sandbox of the group on: one where nothing must be evicted, then
// one that has the image, then the one with the most VFs and memory left, which spreads a burst.
func (s *state) best(g *group) *node {
	var best *node
	for _, n := range s.nodes {
		able := n.up && n.avail().fits(g.memory+n.overhead)
		if able && (best == nil || n.better(best, g)) {
			best = n
		}
	}
	return best
}

func (n *node) better(other *node, g *group) bool {
	mine, its := n.spare(), other.spare()
	if a, b := mine.fits(g.memory+n.overhead), its.fits(g.memory+other.overhead); a != b {
		return a
	}
	if a, b := n.has(g.image), other.has(g.image); a != b {
		return a
	}
	if mine.sandboxes != its.sandboxes {
		return mine.sandboxes > its.sandboxes
	}
	return mine.memory > its.memory
}

func (n *node) has(image string) bool { return n.images == nil || n.images[image] }

// unplaceable returns the refusal of a job that is larger than every node. It looks at the largest
// class.
func (s *state) unplaceable() (step, bool) {
	most, drains := 0, true
	for _, n := range s.nodes {
		most = max(most, n.capacity.memory-n.overhead)
		drains = drains && n.draining
	}
	c := s.classes[len(s.classes)-1]
	w := c.lines[0].head()
	switch {
	case drains:
		return step{kind: Refuse, waiter: w, why: "every node drains"}, true
	case c.memory > most:
		why := fmt.Sprintf(
			"it needs %d MiB and no node has more than %d for it", c.memory, max(most, 0))
		return step{kind: Refuse, waiter: w, why: why}, true
	}
	return step{}, false
}

// due returns what an alarm brings about.
func (s *state) due(a *alarm, now time.Time) step {
	switch of := a.of.(type) {
	case *waiter:
		if now.Before(of.deadline) {
			return step{kind: Note, alarm: a} // it has aged
		}
		waited := now.Sub(of.arrived).Round(time.Millisecond)
		why := fmt.Sprintf("%s; waited %s", s.why(of, now), waited)
		return step{kind: Refuse, waiter: of, why: why}
	case *box:
		if at := s.boxDue(of); at.IsZero() || now.Before(at) {
			break
		}
		expires := s.expires(of)
		if of.phase == idle && s.pauses(of) > 0 && (expires.IsZero() || now.Before(expires)) {
			return step{kind: Pause, box: of}
		}
		if of.counts && of.group.live <= of.group.least {
			break
		}
		return step{kind: Expire, box: of, why: "nobody called it"}
	case *group:
		if n := s.roomAhead(of); n != nil {
			return step{kind: Revive, group: of, node: n, alarm: a}
		}
	}
	return step{kind: Note, alarm: a}
}

// roomAhead returns a node with free room for a group that will be called soon, or nil.
func (s *state) roomAhead(g *group) *node {
	if s.closed || g.again == nil || g.live > 0 || g.full() {
		return nil
	}
	return s.bestUnwanted(g)
}

// pauses returns how long a sandbox idles before it is paused; 0 or less: it never is.
func (s *state) pauses(b *box) time.Duration {
	if b.group == nil {
		return 0
	}
	return cmp.Or(b.group.bounds.PauseAfter, s.pauseAfter)
}

// expires returns when an idle sandbox has been kept long enough; zero if never.
func (s *state) expires(b *box) time.Time {
	switch {
	case b.group != nil && b.group.bounds.Scaled:
	case b.group != nil:
		return b.since.Add(cmp.Or(b.group.bounds.KeepAlive, b.group.window.KeepAlive))
	case b.stem.TTL > 0 && b.stem.idle.n > b.stem.target*len(s.nodes):
		return b.since.Add(b.stem.TTL)
	}
	return time.Time{}
}

// boxDue is when time changes something for a box.
func (s *state) boxDue(b *box) time.Time {
	if !b.idles() || b.place.in == &s.finished {
		return time.Time{}
	}
	expires, pauses := s.expires(b), b.since.Add(s.pauses(b))
	if b.phase == idle && pauses.After(b.since) && (expires.IsZero() || pauses.Before(expires)) {
		return pauses
	}
	return expires
}
