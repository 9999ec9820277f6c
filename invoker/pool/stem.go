package pool

import "time"

// A StemCell is a sandbox that is started before anybody calls, from an image alone: whoever comes
// first with a function for that image and memory, and a demand that says Stem, is spared the
// start. Stem cells are made of what is free, never at the cost of another sandbox, and are the
// first to end when room is needed.
type StemCell struct {
	Image     string
	MemoryMiB int
	Count     int // on each node
	Env       map[string]string
	Reactive  // the zero value keeps Count
}

// Reactive lets the count follow the cold starts that a stem cell would have spared: it is Count
// for one TTL; after each TTL there are to be Increment for every Threshold of them in that time,
// between Min and Max. A stem cell beyond that ends when it has idled for TTL.
type Reactive struct {
	Min, Max             int
	TTL                  time.Duration
	Threshold, Increment int
}

func newStem(cell StemCell) *stem {
	st := &stem{StemCell: cell, target: cell.Count, on: map[*node]int{}}
	st.alarm.of = st
	return st
}

// windowEnd is when the count is to be thought over; never where it does not change.
func (st *stem) windowEnd(begin time.Time) time.Time {
	if st.TTL == 0 {
		return time.Time{}
	}
	return begin.Add(st.TTL)
}

// resize ends a reactive stem cell's window.
func (s *state) resize(st *stem, now time.Time) {
	if st.TTL == 0 || s.closed {
		return // the alarm was for a start to be tried again
	}
	if st.Threshold > 0 {
		st.target = min(max(st.Min, st.cold/st.Threshold*st.Increment), max(st.Min, st.Max))
	}
	st.cold = 0
	s.alarms.set(&st.alarm, st.windowEnd(now))
	var idle []*box
	st.idle.all(func(b *box) bool { idle = append(idle, b); return true })
	for _, b := range idle {
		s.file(b, now)
	}
}

// stemFailed has stem cells be started later.
func (s *state) stemFailed(st *stem, how outcome, since, now time.Time) {
	if st.tries.take(how, since, now); st.TTL == 0 || st.alarm.pos == 0 {
		s.alarms.set(&st.alarm, st.tries.after)
	}
}

// Attempts are starts that no job waits for. After one that failed the next is later, ever later.
type attempts struct {
	fails     int // in a row
	refusals  int // by nodes, in a row
	refusedAt time.Time
	after     time.Time
	counted   time.Time // what was begun before this belongs to the last failure
}

// take takes in how a start has failed that was asked for then.
func (a *attempts) take(how outcome, since, now time.Time) {
	if how.ofNode() {
		a.refused(now)
	} else {
		a.failed(since, now)
	}
}

// MostRest is the longest rest after a failure. A row of failures is over when none has followed
// for as long.
const MostRest = time.Minute

// failed takes in that a start has failed, or what it has started. Those that were begun together
// fail once.
func (a *attempts) failed(since, now time.Time) {
	if since.Before(a.counted) {
		return
	}
	if since.Sub(a.counted) > MostRest {
		a.fails = 0
	}
	a.fails++
	a.after = now.Add(min(time.Second<<min(a.fails, 6), MostRest))
	a.counted = a.after
}

// untilAsked is the time until a node that has refused a start is tried again: it is asked what it
// has meanwhile. One that refuses again is tried ever more seldom, a few seconds apart at last.
const untilAsked = 250 * time.Millisecond

// refused takes in that a start has failed by its node: it was lost, or had no place. That says
// nothing of what was to start.
func (a *attempts) refused(now time.Time) {
	if now.Sub(a.refusedAt) > MostRest {
		a.refusals = 0
	}
	if next := now.Add(untilAsked << min(a.refusals, 4)); next.After(a.after) {
		a.after = next
	}
	a.refusals++
	a.refusedAt = now
}

// backfill starts a stem cell where one is missing and there is room that nobody has a use for.
func (s *state) backfill(now time.Time) (step, bool) {
	for _, st := range s.stems {
		if now.Before(st.tries.after) {
			continue
		}
		for _, n := range s.nodes {
			missing := st.on[n] < st.target
			if missing && s.unwanted(n).fits(st.MemoryMiB+n.overhead) {
				return step{kind: Stem, stem: st, node: n}, true
			}
		}
	}
	return step{}, false
}
