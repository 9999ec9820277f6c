package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A scene is a world whose events a test names itself.
type scene struct {
	testing.TB
	*world
}

func newScene(t testing.TB, cfg Config, views ...view) scene {
	if len(views) == 0 {
		views = []view{sized(unbounded, unbounded)}
	}
	return scene{t, newWorld(cfg, t.Fatalf, nil, views...)}
}

// want settles and compares what was decided.
func (s scene) want(want ...string) {
	s.Helper()
	did := s.settle()
	if !slices.Equal(did, want) {
		s.Errorf("decided %s; want %s", strings.Join(did, ", "), strings.Join(want, ", "))
	}
	s.check()
}

func (s scene) pass(d time.Duration) { s.now = s.now.Add(d) }

func (s scene) call(job Demand) *task { return s.arrive(job, 30*time.Second) }

// begun is a job that runs.
func (s scene) begun(job Demand) *task {
	s.Helper()
	t := s.call(job)
	s.settle()
	if t.box == nil {
		s.Fatalf("%s waits", job.Group)
	}
	if t.box.phase == starting {
		s.started(t.box, true)
	}
	s.settle()
	return t
}

// idling is the sandbox of a job that is over.
func (s scene) idling(job Demand) *box {
	s.Helper()
	t := s.begun(job)
	s.finish(t, true)
	s.settle()
	return t.box
}

func of(group string, memory int) Demand {
	again := func() (*api.StartRequest, error) { return nil, nil }
	return Demand{Namespace: "x", Group: group, MemoryMiB: memory, Again: again}
}

func with(job Demand, change func(*Demand)) Demand { change(&job); return job }

func TestLookupOrder(t *testing.T) {
	a := with(of("a", 100), func(j *Demand) { j.Image, j.Stem, j.Concurrency = "python", true, 2 })
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 1}
	s := newScene(t, Config{StemCells: []StemCell{cell}}, sized(5, unbounded))
	s.started(s.boxes[0], true) // the stem cell
	s.want()
	for range 5 {
		s.call(a)
	}
	s.want("prewarm a in b1", "warming a in b1",
		"cold a on n0", "warming a in b2", "cold a on n0", "stem")
	s.started(s.boxes[3], true)
	one := s.jobs[0]
	s.started(one.box, true)
	s.finish(one, true)
	s.call(a)
	s.want("warm a in " + one.box.id)
	s.want()
	s.idling(of("b", 100))
	s.want()
	s.call(of("c", 100))
	s.want("evict b4", "cold c on n0") // the stem cell
	s.call(of("d", 100))
	s.want("evict b5", "cold d on n0")
	s.call(of("e", 100))
	s.want()
	if why := s.s.why(s.jobs[len(s.jobs)-1].w, s.now); why != "no VF, 0 ahead" {
		t.Error(why)
	}
}

func TestABurstStartsAsManyAsItTakes(t *testing.T) {
	for _, c := range []struct{ jobs, concurrency, places, starts int }{
		{200, 0, unbounded, 200}, {200, 1, 64, 64}, {200, 8, unbounded, 25}, {201, 8, unbounded, 26}, {7, 3, 2, 2}, {1, 5, 1, 1},
	} {
		s := newScene(t, Config{}, sized(c.places, unbounded))
		s.s.mostQueued = unbounded
		for range c.jobs {
			s.call(with(of("a", 100), func(j *Demand) { j.Concurrency = c.concurrency }))
		}
		s.settle()
		if starts := int(s.s.counts[Cold]); starts != c.starts {
			t.Errorf("%d jobs, %d in a sandbox, %d places: %d starts, want %d",
				c.jobs, c.concurrency, c.places, starts, c.starts)
		}
		s.check()
	}
}

func TestTheLongestIdleGoesFirstAndNoneInVain(t *testing.T) {
	s := newScene(t, Config{}, sized(unbounded, 300))
	b1 := s.idling(of("a", 100))
	s.pass(time.Second)
	b2 := s.idling(of("b", 100))
	busy := s.begun(of("c", 100))
	s.pass(time.Second)
	s.call(of("d", 250))
	s.want() // all that idles would not be enough
	s.finish(busy, true)
	s.want("evict "+b1.id, "evict "+b2.id, "evict "+busy.box.id, "cold d on n0")
}

func TestKeepAliveAndPause(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Minute, PauseAfter: 10 * time.Second})
	b := s.idling(of("a", 100))
	s.pass(9 * time.Second)
	s.want()
	s.pass(time.Second)
	s.want("pause " + b.id)
	s.call(of("a", 100))
	s.want("warm a in " + b.id)
	s.finish(s.jobs[1], true)
	s.pass(10 * time.Second)
	s.want("pause " + b.id)
	since := b.since
	s.pass(since.Add(time.Minute).Sub(s.now))
	s.want("expire " + b.id)
}

func TestAGroupHasItsOwnBounds(t *testing.T) {
	own := func(group string, b Bounds) Demand {
		return with(of(group, 100), func(d *Demand) { d.Bounds = b })
	}
	cfg := Config{KeepAlive: time.Hour, PauseAfter: time.Minute, Policy: Histogram{time.Hour}}
	s := newScene(t, cfg)
	short := Bounds{KeepAlive: 10 * time.Second, PauseAfter: 5 * time.Second}
	brief := s.idling(own("brief", short))
	wakeful := s.idling(own("wakeful", Bounds{PauseAfter: -1}))
	s.pass(5 * time.Second)
	s.want("pause " + brief.id)
	s.pass(10 * time.Second)
	s.want("expire " + brief.id)
	s.pass(59 * time.Minute)
	s.want()
	s.pass(time.Minute)
	s.want("expire " + wakeful.id)

	many := own("many", Bounds{KeepAlive: time.Minute, PauseAfter: -1})
	for range 3 {
		s.call(many)
	}
	s.settle()
	s.s.keep(&many, 2, 9, s.now)
	for _, t := range s.jobs[2:] {
		s.started(t.box, true)
		s.finish(t, true)
	}
	s.pass(time.Minute)
	s.want("expire b3") // the least are two
	for range 10 {
		s.pass(time.Minute)
		s.want()
	}
	s.s.keep(&many, 0, 9, s.now)
	s.s.retire(maps.Values(s.s.named["many"]), s.now)
	s.want("expire b4", "expire b5") // it is wanted no more
}

// What a group keeps is started in free room, again when it has ended, and later if it fails.
func TestAGroupKeepsSandboxes(t *testing.T) {
	kept := with(of("kept", 100), func(d *Demand) { d.KeepAlive = time.Minute })
	s := newScene(t, Config{}, sized(3, unbounded))
	s.call(of("other", 100))
	s.want("cold other on n0")
	s.s.keep(&kept, 3, 9, s.now)
	s.want("keep kept", "keep kept") // there is no more room
	s.started(s.boxes[1], true)
	s.started(s.boxes[2], false)
	s.want()
	s.pass(2 * time.Second)
	s.want("keep kept")
	s.started(s.boxes[3], true)
	s.pass(time.Hour)
	s.want()
	s.call(kept)
	s.want("warm kept in b4")
	s.finish(s.jobs[1], false)
	s.want("expire b4", "keep kept")
	s.started(s.boxes[4], true)
	s.s.keep(&kept, 0, 9, s.now)
	s.pass(time.Minute)
	s.want("expire b2", "expire b5")
	s.s.keep(&kept, 1, 9, s.now)
	s.want("keep kept")
	s.started(s.boxes[5], true)
	s.s.retire(maps.Values(s.s.named["kept"]), s.now)
	s.want("expire b6") // no other is kept
	two := with(kept, func(d *Demand) { d.Group = "two" })
	s.s.keep(&two, 2, 1, s.now)
	s.want("keep two") // their namespace keeps one at most
	s.s.keep(&kept, 2, 1, s.now)
	s.want()
	if s.s.keep(&kept, 0, 9, s.now); len(s.s.named["kept"]) > 0 {
		t.Error("a group that keeps none is remembered")
	}
}

// A sandbox that is there only because its group keeps it is evicted before one that was used.
func TestWhatIsOnlyKeptGoesFirst(t *testing.T) {
	kept := with(of("kept", 100), func(d *Demand) { d.KeepAlive = time.Minute })
	s := newScene(t, Config{KeepAlive: time.Hour}, sized(2, unbounded))
	s.idling(of("other", 100))
	s.s.keep(&kept, 1, 9, s.now)
	s.want("keep kept")
	s.started(s.boxes[1], true)
	job := s.begun(of("more", 100))
	s.want()
	if job.box.id != "b3" || s.boxes[1].phase != gone {
		t.Errorf("%s took the place of another", job.box.id)
	}
	s.finish(job, false)
	s.want("expire b3", "keep kept")
	s.started(s.boxes[3], true)
	s.finish(s.begun(kept), true) // it is used, and idles for less long than the other
	s.call(of("more", 100))
	s.want("evict b1", "cold more on n0")
	s.finish(s.begun(kept), true)
	s.pass(2 * time.Minute)
	s.want() // nobody has used it for longer than its keep-alive
	s.started(s.jobs[len(s.jobs)-2].box, true)
	s.finish(s.jobs[len(s.jobs)-2], true)
	s.call(of("last", 100))
	s.want("evict b4", "cold last on n0")
}

// A group that may have no more sandboxes waits for its own, in nobody's way.
func TestAGroupHasNoMoreThanItMay(t *testing.T) {
	two := with(of("two", 100), func(d *Demand) { d.Max, d.Image, d.Stem = 2, "python", true })
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 1}
	s := newScene(t, Config{StemCells: []StemCell{cell}}, sized(5, unbounded))
	s.started(s.boxes[0], true)
	for range 4 {
		s.call(two)
	}
	s.want("prewarm two in b1", "cold two on n0", "stem") // two more wait, and take no room
	why := s.s.why(s.jobs[2].w, s.now)
	if why != "its function has as many sandboxes as it may, 0 ahead" {
		t.Error(why)
	}
	if shot := s.s.snapshot(s.now); shot.Queue[AtMost] != 2 {
		t.Errorf("%v", shot.Queue)
	}
	s.started(s.boxes[2], true)
	s.pass(2 * testPatience)
	s.want() // nobody has to end for it, and it takes no stem cell
	s.begun(of("other", 100))
	s.started(s.jobs[0].box, true)
	s.finish(s.jobs[0], true)
	s.want("warm two in b1")
	s.started(s.jobs[1].box, true)
	s.finish(s.jobs[1], false)
	s.want("expire b2", "prewarm two in b3", "stem")
}

// Of a namespace's sandboxes one that ends by itself makes room before one with an endless lease.
func TestAnEndlessLeaseMakesRoomLast(t *testing.T) {
	s := newScene(t, Config{}, sized(2, unbounded))
	socket := s.begun(with(of("socket", 100), func(d *Demand) { d.Endless = true }))
	s.pass(time.Second)
	short := s.begun(of("short", 100))
	s.call(with(of("other", 100), func(d *Demand) { d.Namespace = "y" }))
	s.pass(testPatience)
	s.want("claim other")
	if socket.box.claimed || !short.box.claimed {
		t.Error("the endless one is to end")
	}
}

func TestAFunctionThatIsForeseen(t *testing.T) {
	s := newScene(t, Config{Policy: foreseen{}})
	first := s.begun(of("a", 100))
	s.finish(first, true)
	s.want("expire b1")
	s.pass(2 * time.Second)
	s.want("revive a")
	s.started(s.boxes[1], true)
	s.call(of("a", 100))
	s.want("warm a in b2")
	s.finish(s.jobs[1], true)
	s.want("expire b2")
	s.pass(2 * time.Second)
	s.want("revive a")
	s.started(s.boxes[2], true)
	s.want()
	s.pass(3 * time.Second)
	s.want("expire b3")
}

func TestStemCells(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 2}
	python := with(of("a", 100), func(j *Demand) { j.Image, j.Stem = "python", true })
	s := newScene(t, Config{StemCells: []StemCell{cell}}, sized(3, unbounded))
	for _, b := range s.boxes {
		s.started(b, true)
	}
	s.call(python)
	s.want("prewarm a in b2", "stem") // the last place is free
	s.started(s.boxes[1], true)
	s.started(s.boxes[2], true)
	s.finish(s.jobs[0], true)
	s.want() // full, and the warm one is not evicted for another stem cell
	s.call(of("other", 200))
	s.want("evict b1", "cold other on n0") // stem cells are the first to go
	s.started(s.boxes[3], true)
	s.call(of("more", 200))
	s.want("evict b3", "cold more on n0")

	other := newScene(t, Config{StemCells: []StemCell{cell}}, sized(3, unbounded))
	other.started(other.boxes[0], true)
	other.call(with(python, func(j *Demand) { j.Stem = false }))
	other.want("cold a on n0") // the image alone does not make it its own

	failing := newScene(t, Config{StemCells: []StemCell{cell}}, sized(1, unbounded))
	failing.started(failing.boxes[0], false)
	failing.want()
	failing.pass(2 * time.Second)
	failing.want("stem")
}

func TestStemCellsFollowTheColdStarts(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 100}
	cell.Reactive = Reactive{Max: 3, TTL: time.Minute, Threshold: 2, Increment: 1}
	python := with(of("a", 100), func(j *Demand) { j.Image, j.Stem, j.Start = "python", true, nil })
	s := newScene(t, Config{StemCells: []StemCell{cell}, KeepAlive: time.Hour})
	s.want()
	for range 4 {
		s.begun(python)
	}
	s.pass(time.Minute)
	s.want("stem", "stem")
	for _, b := range s.boxes[4:] {
		s.started(b, true)
	}
	s.want()
	s.pass(time.Minute)
	s.want("expire b5", "expire b6") // nobody started cold for a minute
}

func TestStemCellsBeginAsManyAsAreToBe(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 3}
	cell.Reactive = Reactive{Min: 1, Max: 3, TTL: time.Minute, Threshold: 1, Increment: 1}
	s := newScene(t, Config{StemCells: []StemCell{cell}}, sized(5, 1000))
	for _, b := range s.boxes {
		s.started(b, true)
	}
	s.want()
	if len(s.boxes) != 3 {
		t.Errorf("%d stem cells at first, want 3", len(s.boxes))
	}
	s.pass(time.Minute)
	s.want("expire b1", "expire b3") // nobody started cold for a minute, and one is the least
}

func TestPlacement(t *testing.T) {
	far, full, near := sized(5, 1000), sized(0, 1000), sized(3, 1000)
	near.images = map[string]bool{"python": true}
	far.images = map[string]bool{"node": true}
	s := newScene(t, Config{}, far, full, near)
	python := func(group string) Demand {
		return with(of(group, 100), func(d *Demand) { d.Image, d.Stem = "python", true })
	}
	s.call(python("a"))
	s.want("cold a on n2") // its image is there
	s.call(of("b", 100))
	s.want("cold b on n0") // no image is near: most VFs
	for i := range 3 {
		s.call(python(fmt.Sprint("c", i)))
	}
	s.want("cold c0 on n2", "cold c1 on n2", "cold c2 on n0")
	s.s.unreached(s.s.nodes[0], "n0 is off", s.now)
	s.call(of("d", 100))
	s.want()
	draining := near
	draining.draining = true
	s.s.looked(s.s.nodes[2], draining, s.now)
	s.started(s.jobs[0].box, true)
	s.finish(s.jobs[0], true)
	s.want("expire b1") // what idles on a node that drains ends
	s.pass(testLost)
	s.want()
	if n := s.s.nodes[0]; len(n.boxes) != 0 || len(n.orphans) != 2 {
		t.Errorf("%d sandboxes left of a lost node, %d to be ended when it is back",
			len(n.boxes), len(n.orphans))
	}
	s.s.looked(s.s.nodes[0], far, s.now)
	s.want("cold d on n0")
	for _, n := range s.s.nodes {
		s.s.looked(n, draining, s.now)
	}
	s.call(of("e", 100))
	s.want("refuse e: every node drains")
}

func TestABurstSpreads(t *testing.T) {
	s := newScene(t, Config{}, sized(8, 10_000), sized(8, 10_000), sized(8, 10_000))
	for range 12 {
		s.call(of("a", 100))
	}
	s.settle()
	for _, n := range s.s.nodes {
		if len(n.boxes) != 4 {
			t.Errorf("%s has %d of 12", n.name, len(n.boxes))
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newScene(t, Config{}, sized(1, 1000))
	s.begun(of("a", 100))
	s.call(of("huge", 2000))
	s.want("refuse huge: it needs 2000 MiB and no node has more than 1000 for it")
	s.arrive(of("b", 100), 5*time.Second)
	s.arrive(of("c", 100), 3*time.Second)
	s.want()
	s.pass(testPatience)
	s.want("claim b")
	s.pass(2 * time.Second)
	s.want("refuse c: no VF, 1 ahead; waited 3s")
	s.pass(2 * time.Second)
	s.want("refuse b: room is being made for it, 0 ahead; waited 5s")
	for range testQueue {
		s.call(of("d", 100))
	}
	if refused := s.call(of("e", 100)); !refused.over {
		t.Error("a namespace has more jobs waiting than it may")
	}
	if other := s.call(with(of("e", 100), func(j *Demand) { j.Namespace = "y" })); other.over {
		t.Error("another namespace is refused for it")
	}
}

func TestMoveRefusesWhatIsNotAllowed(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a sandbox went from gone to idle")
		}
	}()
	(&box{phase: gone}).move(idle, t0)
}

// Who retires an action's sandboxes looks at the groups of its name, however many others there are.
func TestRetiringLooksAtNoOthers(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour})
	for n := range 1000 {
		s.idling(of(fmt.Sprint("other", n), 100))
	}
	mine := s.idling(of("mine", 100))
	yours := s.idling(with(of("mine", 100), func(j *Demand) { j.Namespace = "y" }))
	if looked := len(s.s.named["mine"]); looked != 2 {
		t.Errorf("looks at %d groups, want those of two namespaces", looked)
	}
	s.s.retire(maps.Values(s.s.named["mine"]), s.now)
	s.settle()
	if !mine.retired || !yours.retired {
		t.Error("a sandbox of the name goes on")
	}
	for k, g := range s.s.groups {
		g.members.all(func(b *box) bool {
			if b.retired && k.name != "mine" {
				t.Errorf("a sandbox of %s ends", k.name)
			}
			return true
		})
	}
	s.check()
}

// A node that is out of reach is shown so, with why, though it was draining when it was last seen.
func TestANodeThatDrainsAndDiesIsAway(t *testing.T) {
	s := newScene(t, Config{})
	v := sized(5, 1000)
	v.draining = true
	for _, want := range []string{"draining", "n0 is off", "draining"} {
		if want == "n0 is off" {
			s.s.unreached(s.s.nodes[0], want, s.now)
		} else {
			s.s.looked(s.s.nodes[0], v, s.now)
		}
		if got := s.s.snapshot(s.now).Nodes[0].State; got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
	}
}
