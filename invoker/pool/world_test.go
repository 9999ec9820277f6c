package pool

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/api"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A world is a pool's state without a pool: events happen to it as chosen, what is decided is
// applied, and all of it is kept account of a second time, in the simplest way.
type world struct {
	fail   func(format string, args ...any)
	choose func(n int) int // of n
	s      *state
	now    time.Time
	jobs   []*task
	boxes  []*box
	serial int

	retired map[key]bool   // groups that nobody has asked for since
	shrunk  map[*node]bool // they have had more while their claim was made
}

// A task is a job and how far it has got.
type task struct {
	w     *waiter
	job   Demand
	box   *box
	again bool
	over  bool
}

const (
	testPatience = time.Second
	testQueue    = 12
	testLost     = 5 * time.Second
)

func newWorld(cfg Config, fail func(string, ...any), choose func(n int) int, views ...view) *world {
	cfg.Patience, cfg.Queue, cfg.LostAfter = testPatience, testQueue, testLost
	for i := range views {
		cfg.Nodes = append(cfg.Nodes, Named{Name: fmt.Sprint("n", i)})
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = time.Minute
	}
	cfg.defaults()
	w := &world{fail: fail, choose: choose, s: newState(cfg, t0), now: t0,
		retired: map[key]bool{}, shrunk: map[*node]bool{}}
	w.s.newID = func() string { w.serial++; return fmt.Sprint("b", w.serial) }
	for i, v := range views {
		w.s.looked(w.s.nodes[i], v, t0)
	}
	w.settle()
	return w
}

func sized(sandboxes, memory int) view {
	return view{capacity: room{sandboxes, memory}, hasVFs: sandboxes < unbounded}
}

// settle applies all that is decided, and returns it.
func (w *world) settle() (did []string) {
	for range 10_000 {
		do, more := decide(w.s, w.now)
		if !more {
			return did
		}
		w.carryOut(do)
		if do.kind != Note {
			did = append(did, show(do))
		}
	}
	w.fail("decisions without end: %v", did[len(did)-5:])
	return nil
}

func show(do step) string {
	switch {
	case do.kind == Refuse:
		return "refuse " + do.waiter.group.name + ": " + do.why
	case do.kind == Cold:
		return fmt.Sprint("cold ", do.waiter.group.name, " on ", do.node.name)
	case do.waiter != nil:
		return fmt.Sprint(do.kind, " ", do.waiter.group.name, " in ", do.box.id)
	case do.group != nil:
		return fmt.Sprint(do.kind, " ", do.group.name)
	case do.box != nil:
		return fmt.Sprint(do.kind, " ", do.box.id)
	}
	return string(do.kind)
}

func (w *world) carryOut(do step) {
	var of *task
	if do.waiter != nil {
		of = w.taskOf(do.waiter)
		if of.over || of.box != nil {
			w.fail("%s: the job has been given a sandbox or an end before", show(do))
		}
		w.first(do.waiter, of)
	}
	if do.kind == Cold || do.kind == Stem || do.kind == Revive || do.kind == Keep {
		need := do.node.overhead
		switch {
		case do.stem != nil:
			need += do.stem.MemoryMiB
		case do.group != nil:
			need += do.group.memory
		default:
			need += do.waiter.group.memory
		}
		if !do.node.up || !do.node.free.fits(need) {
			w.fail("%s: %d MiB do not fit what is free, %+v", show(do), need, do.node.free)
		}
	}
	if do.kind == Warm && do.box.group.jobs == 0 && do.box != do.box.group.open.last.of {
		w.fail("%s: one that comes alone wakes it", show(do))
	}
	if do.box != nil && (do.kind == Warm || do.kind == Warming) {
		b := do.box
		takes := !b.retired && !b.claimed && !b.rests && b.used < b.slots && b.node.up
		if b.group != do.waiter.group || !takes {
			w.fail("%s: that sandbox is not to be had", show(do))
		}
	}
	if (do.kind == Expire || do.kind == Evict) && do.box.group != nil {
		w.checkEnd(do)
	}
	if (do.kind == Evict || do.kind == Expire || do.kind == Pause) && do.box.used > 0 {
		w.fail("%s while it is in use", show(do))
	}
	w.s.apply(&do, w.now)
	switch do.kind {
	case Claim:
		delete(w.shrunk, do.node)
	case Cold, Stem, Revive, Keep:
		w.boxes = append(w.boxes, do.box)
	}
	if of != nil {
		of.box, of.over = do.box, do.kind == Refuse
	}
}

// checkEnd checks that a group keeps the sandboxes that it is to keep however long they idle.
func (w *world) checkEnd(do step) {
	g := do.box.group
	if do.kind == Expire && do.box.takes(w.s) && g.live <= g.least {
		w.fail("%s, and its group is to keep %d of %d", show(do), g.least, g.live)
	}
}

// first checks that nobody of the group came earlier.
func (w *world) first(who *waiter, of *task) {
	for _, other := range w.jobs {
		first := other.w.group == who.group && other.w.number < who.number
		again := other.again || of.again
		if other.waits() && first && !again && who.deadline.After(w.now) {
			w.fail("job %d of %s goes before job %d", who.number, who.group.name, other.w.number)
		}
	}
}

func (t *task) waits() bool { return !t.over && t.box == nil }

func keyOf(job *Demand) key { return key{job.Namespace, job.Group, job.MemoryMiB} }

func waiting(arrived, deadline time.Time) *waiter {
	w := &waiter{}
	w.init(arrived, deadline)
	return w
}

func (w *world) taskOf(who *waiter) *task {
	for _, t := range w.jobs {
		if t.w == who {
			return t
		}
	}
	w.fail("a job that never came")
	return nil
}

// arrive has a job come.
func (w *world) arrive(job Demand, wait time.Duration) *task {
	t := &task{w: waiting(w.now, w.now.Add(wait)), job: job}
	t.w.endless = job.Endless
	w.jobs = append(w.jobs, t)
	delete(w.retired, keyOf(&job))
	t.over = w.s.arrive(t.w, &t.job, false, w.now) != ""
	return t
}

func (w *world) started(b *box, ok bool) {
	how := outcome{}
	if !ok {
		how.err = errors.New("it does not start")
	}
	w.s.started(b, how, w.now)
	if ok {
		return
	}
	for _, t := range w.jobs {
		if t.box == b && !t.over { // the job that started it has failed, those that waited go on
			w.finish(t, false)
		}
	}
}

func (w *world) finish(t *task, keep bool) {
	b := t.box
	t.over = true
	w.s.done(b, t.w, keep, w.now)
}

// tryAgain is a job whose warm sandbox was none.
func (w *world) tryAgain(t *task) {
	b := t.box
	t.box, t.again = nil, true
	w.s.done(b, t.w, false, w.now)
	w.s.arrive(t.w, &t.job, true, w.now)
}

// pick chooses one of those that are wanted, if there are any.
func pick[T any](w *world, from []T, wanted func(T) bool) (one T, ok bool) {
	var some []T
	for _, x := range from {
		if wanted(x) {
			some = append(some, x)
		}
	}
	if len(some) == 0 {
		return one, false
	}
	return some[w.choose(len(some))], true
}

func isStarting(b *box) bool { return b.phase == starting }

// runs reports whether a job may end: one that is endless does so only if it is told to.
func runs(t *task) bool {
	return !t.over && t.box != nil && t.box.phase != starting && (!t.job.Endless || t.box.claimed)
}

// someJob is one of few groups of few namespaces; its group says what it needs.
func (w *world) someJob() Demand {
	i := w.choose(len(someJobs))
	job := someJobs[i]
	job.Group, job.Namespace = fmt.Sprint("g", i), string(rune('x'+w.choose(3)))
	job.Again = func() (*api.StartRequest, error) { return &api.StartRequest{}, nil }
	return job
}

var someJobs = []Demand{
	{MemoryMiB: 100, Image: "a", Stem: true}, {MemoryMiB: 250},
	{MemoryMiB: 400, Image: "b", Stem: true}, {MemoryMiB: 100, Image: "a"},
	{MemoryMiB: 100, Concurrency: 3}, {MemoryMiB: 100, Image: "c", Stem: true},
	{MemoryMiB: 100, Concurrency: 2, Endless: true},
	{MemoryMiB: 100, Image: "a", Stem: true, Bounds: Bounds{Max: 2}},
	{MemoryMiB: 100, Bounds: Bounds{KeepAlive: time.Second, PauseAfter: -1}},
	{MemoryMiB: 100, Concurrency: 3, Endless: true, Bounds: Bounds{Max: 1, PauseAfter: time.Second}},
	{MemoryMiB: 100, Bounds: Bounds{Scaled: true}},
	{MemoryMiB: 100, Concurrency: 2, Bounds: Bounds{Scaled: true, Max: 3, PauseAfter: time.Second}},
	{MemoryMiB: 100, Concurrency: Endless, Bounds: Bounds{Scaled: true, PauseAfter: time.Second}},
}

// happen lets one thing happen.
func (w *world) happen() {
	w.now = w.now.Add(time.Duration(w.choose(40)) * 25 * time.Millisecond)
	if w.choose(20) == 19 {
		w.now = w.now.Add(30 * time.Second)
	}
	n := w.s.nodes[w.choose(len(w.s.nodes))]
	switch what := w.choose(20); what {
	default:
		w.arrive(w.someJob(), []time.Duration{4 * time.Second, 20 * time.Second}[w.choose(2)])
	case 5, 6:
		if b, ok := pick(w, w.boxes, isStarting); ok {
			w.started(b, w.choose(5) > 0)
		}
	case 7, 8, 9:
		if t, ok := pick(w, w.jobs, runs); ok {
			w.finish(t, w.choose(5) > 0)
		}
	case 11:
		w.s.unreached(n, "it does not answer", w.now)
	case 12:
		sandboxes := []int{0, 2, 4, unbounded}[w.choose(4)]
		memory := []int{300, 700, 1500, unbounded}[w.choose(4)]
		w.s.looked(n, sized(sandboxes, memory), w.now)
		w.shrunk[n] = true
	case 13:
		v := sized(n.capacity.sandboxes, n.capacity.memory)
		v.draining = w.choose(2) == 0
		w.s.looked(n, v, w.now)
	case 14:
		name := fmt.Sprint("g", w.choose(len(someJobs)))
		for k := range w.s.named[name] {
			w.retired[k] = true
		}
		w.s.retire(maps.Values(w.s.named[name]), w.now)
	case 16:
		job := w.someJob()
		delete(w.retired, keyOf(&job))
		w.s.keep(&job, w.choose(5), w.choose(9), w.now)
	case 17:
		if b, ok := pick(w, w.boxes, func(b *box) bool { return b.idles() }); ok {
			w.s.ended(b.node, b.id, errors.New("it ended with 1"), w.now)
		}
	case 18:
		ours := func(b *box) bool { return b.group != nil && b.phase != gone }
		if b, ok := pick(w, w.boxes, ours); ok {
			w.s.setRest(b, w.choose(2) == 0, w.now)
		}
	case 19:
		up := func(b *box) bool { return b.phase != starting && b.phase != gone }
		if b, ok := pick(w, w.boxes, up); ok {
			w.s.fail(b, errors.New("it does not answer"), w.now)
		}
	case 15:
		runs := func(t *task) bool { return !t.over && t.box != nil && t.box.phase == running }
		if t, ok := pick(w, w.jobs, runs); ok {
			w.tryAgain(t)
		}
	}
}

// foreseen is a policy for which every function comes back after two seconds.
type foreseen struct{}

func (foreseen) Window(*Idles) Window     { return Window{2 * time.Second, 3 * time.Second} }
func (foreseen) Remembers() time.Duration { return 10 * time.Second }

// somewhere is a world that was chosen.
func somewhere(fail func(string, ...any), choose func(n int) int) *world {
	cfg := Config{KeepAlive: 5 * time.Second}
	cfg.PauseAfter = []time.Duration{0, 2 * time.Second}[choose(2)]
	if choose(2) == 0 {
		reactive := Reactive{Max: 3, TTL: 3 * time.Second, Threshold: 1, Increment: 1}
		cfg.StemCells = []StemCell{
			{Image: "a", MemoryMiB: 100, Count: 1},
			{Image: "b", MemoryMiB: 400, Count: 1, Reactive: reactive},
		}
	}
	cfg.Policy = []Policy{nil, Histogram{3 * time.Second}, foreseen{}}[choose(3)]
	var views []view
	for range 1 + choose(3) {
		v := sized([]int{1, 3, unbounded}[choose(3)], []int{300, 700, 1500}[choose(3)])
		v.overhead = []int{0, 50}[choose(2)]
		views = append(views, v)
	}
	return newWorld(cfg, fail, choose, views...)
}

func (w *world) live(events int) {
	for range events {
		w.happen()
		w.settle()
		w.check()
	}
	w.end()
}

// end closes the pool and lets everything come to its end: nothing is left.
func (w *world) end() {
	w.s.close(w.now)
	w.settle()
	for _, b := range w.boxes {
		if b.phase == starting {
			w.started(b, false)
		}
	}
	for _, t := range w.jobs {
		if t.waits() {
			w.fail("a job of %s waits in a closed pool", t.job.Group)
		}
		if !t.over {
			w.finish(t, true)
		}
	}
	w.settle()
	filed := w.s.servable.n + w.s.full.n + w.s.finished.n
	if !w.s.empty() || len(w.s.classes) > 0 || filed > 0 {
		w.fail("left in a closed pool: %+v", w.s.snapshot(w.now))
	}
	for _, g := range w.s.groups {
		if g.jobs != 0 || g.members.n != 0 || g.live != 0 || g.space.held != 0 {
			w.fail("left of group %s: %d jobs, %d sandboxes, %d alive, %d MiB held",
				g.name, g.jobs, g.members.n, g.live, g.space.held)
		}
	}
}

// Whatever happens in whatever order, what check says holds.
func TestWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		somewhere(t.Fatalf, choose).live(rapid.IntRange(1, 150).Draw(t, "events"))
	})
}

func FuzzWhateverHappens(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 7, 3})
	f.Add([]byte("the quick brown fox jumps over the lazy dog, and back again over the same dog"))
	f.Fuzz(func(t *testing.T, choices []byte) {
		if len(choices) > 400 {
			return
		}
		at := 0
		choose := func(n int) int {
			if at == len(choices) {
				return 0
			}
			at++
			return int(choices[at-1]) % n
		}
		w := somewhere(t.Fatalf, choose)
		for at < len(choices) {
			w.happen()
			w.settle()
			w.check()
		}
		w.end()
	})
}
