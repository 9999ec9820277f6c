package pool

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// room is how much of the node there is, in all or still free.
type room struct {
	sandboxes int
	memory    int // MiB
}

// unbounded is more than any node has: of what the pool knows no bound of, the node itself queues or refuses.
const unbounded = math.MaxInt32

type phase string

const (
	starting phase = "starting"
	running  phase = "running"
	idle     phase = "idle"
	gone     phase = "gone"
)

var allowed = map[phase][]phase{
	starting: {running, gone},
	running:  {idle, gone},
	idle:     {running, gone},
}

// A box is a sandbox as the pool sees it.
type box struct {
	id      string
	group   string
	memory  int // MiB, of its own
	phase   phase
	since   time.Time // of the phase
	retired bool      // its group is no more: it ends instead of idling
}

func (b *box) move(to phase, now time.Time) {
	if !slices.Contains(allowed[b.phase], to) {
		panic(fmt.Sprintf("pool: sandbox %s cannot go from %s to %s", b.id, b.phase, to))
	}
	b.phase, b.since = to, now
}

// A waiter is a job without a sandbox.
type waiter struct {
	group    string
	memory   int
	arrived  time.Time
	deadline time.Time
	grant    chan grant // of one, so that granting never blocks
}

// state is what the owner owns.
type state struct {
	capacity  room
	overhead  int // MiB that a sandbox takes beside its own
	keepAlive time.Duration
	boxes     []*box
	queue     []*waiter // by arrival
	closed    bool
	looking   bool      // the node is being asked for its capacity
	looked    time.Time // when it last was
}

// A step is one thing to do. Exactly one of the shapes: reuse {waiter, box}, start {waiter}, refuse {waiter, why}, stop {box}.
type step struct {
	waiter *waiter
	box    *box
	why    string
}

// decide says what is to be done now, in order. Applying every step must leave nothing to decide at the same now.
func decide(s *state, now time.Time) []step {
	d := decision{state: s, free: s.free()}
	for _, b := range s.idling() {
		if b.retired || s.closed || !now.Before(b.since.Add(s.keepAlive)) {
			d.end(b)
		} else {
			d.spare = append(d.spare, b)
		}
	}
	for _, w := range s.queue {
		d.place(w, now)
	}
	return d.steps
}

// A decision in the making: what is still free, and which idle sandboxes nobody took yet, the longest idle first.
type decision struct {
	*state
	free  room
	spare []*box
	held  string // why the first start that does not fit must wait; those behind it wait too
	steps []step
}

func (d *decision) place(w *waiter, now time.Time) {
	if d.closed {
		d.steps = append(d.steps, step{waiter: w, why: "the invoker shuts down"})
		return
	}
	if b := d.take(w.group); b != nil {
		d.steps = append(d.steps, step{waiter: w, box: b})
		return
	}
	if needed := w.memory + d.overhead; needed > d.capacity.memory {
		d.steps = append(d.steps, step{waiter: w, why: fmt.Sprintf("it needs %d MiB and the node has %d in all", needed, d.capacity.memory)})
		return
	}
	why := d.held
	if why == "" {
		why = d.makeRoom(w.memory)
	}
	switch {
	case why == "":
		d.free = d.free.less(w.memory + d.overhead)
		d.steps = append(d.steps, step{waiter: w})
	case now.Before(w.deadline):
		d.held = why
	default:
		d.steps = append(d.steps, step{waiter: w, why: fmt.Sprintf("%s; waited %s", why, now.Sub(w.arrived).Round(time.Millisecond))})
	}
}

// end stops an idle sandbox; its place is free at once.
func (d *decision) end(b *box) {
	d.free = d.free.more(b.memory + d.overhead)
	d.steps = append(d.steps, step{box: b})
}

// take gives the group's sandbox that idled last: the likeliest to be warm in every cache, and it lets the others expire.
func (d *decision) take(group string) *box {
	for i, b := range slices.Backward(d.spare) {
		if b.group == group {
			d.spare = slices.Delete(d.spare, i, i+1)
			return b
		}
	}
	return nil
}

// makeRoom evicts idle sandboxes, the longest idle first, until one of that memory fits, or says why it cannot. It evicts none if
// all of them would not be enough.
func (d *decision) makeRoom(memory int) (why string) {
	free, evict := d.free, 0
	for why = d.full(free, memory); why != "" && evict < len(d.spare); why = d.full(free, memory) {
		free = free.more(d.spare[evict].memory + d.overhead)
		evict++
	}
	if why != "" {
		return why
	}
	for _, b := range d.spare[:evict] {
		d.end(b)
	}
	d.spare = d.spare[evict:]
	return ""
}

func (d *decision) full(free room, memory int) string {
	switch needed := memory + d.overhead; {
	case free.sandboxes < 1:
		return fmt.Sprintf("the node can hold %d sandboxes and all are busy", d.capacity.sandboxes)
	case free.memory < needed:
		return fmt.Sprintf("%d MiB are needed and %d of the node's %d are free", needed, free.memory, d.capacity.memory)
	default:
		return ""
	}
}

func (r room) less(memory int) room { return room{r.sandboxes - 1, r.memory - memory} }
func (r room) more(memory int) room { return room{r.sandboxes + 1, r.memory + memory} }

func (s *state) free() room {
	free := s.capacity
	for _, b := range s.boxes {
		free = free.less(b.memory + s.overhead)
	}
	return free
}

func (s *state) idling() []*box {
	var list []*box
	for _, b := range s.boxes {
		if b.phase == idle {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b *box) int { return a.since.Compare(b.since) })
	return list
}

// next is when decide may have something new to say though nothing happens; zero if never.
func (s *state) next() time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, b := range s.boxes {
		if b.phase == idle {
			sooner(b.since.Add(s.keepAlive))
		}
	}
	for _, w := range s.queue {
		sooner(w.deadline)
	}
	return next
}
