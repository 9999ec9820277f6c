package pool

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a namespace may keep goes to those that want it, again whenever that changes.
func TestAShareIsDealtAgain(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour})
	a, b, c := of("a", 100), of("b", 100), of("c", 100)
	s.s.keep(&a, 20, 30, s.now)
	s.s.keep(&b, 20, 30, s.now)
	s.s.keep(&c, 5, 30, s.now)
	s.keeps(20, 10, 0)
	s.s.keep(&a, 0, 30, s.now)
	s.keeps(0, 20, 5)
	s.s.keep(&c, 5, 12, s.now) // it may keep less from now on
	s.keeps(0, 12, 0)
	s.s.keep(&a, 0, 23, s.now)
	s.keeps(0, 20, 3)
	s.s.retire(func(yield func(*group) bool) { yield(s.groupOf("b")) }, s.now)
	s.keeps(0, 0, 5)
}

func (s scene) groupOf(name string) *group { return s.s.groups[key{"x", name, 100}] }

// keeps compares how many sandboxes of the groups a, b and c are kept.
func (s scene) keeps(want ...int) {
	s.Helper()
	s.settle()
	s.check()
	for i, n := range want {
		g := s.groupOf(string(rune('a' + i)))
		if g == nil && n == 0 {
			continue
		}
		if g.least != n {
			s.Errorf("%s keeps %d, want %d", g.name, g.least, n)
		}
	}
}

// A stem cell ends before a sandbox that its group keeps, and that before one that was used.
func TestWhatEndsFirst(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 1}
	s := newScene(t, Config{StemCells: []StemCell{cell}}, sized(3, unbounded))
	s.started(s.boxes[0], true)
	s.idling(of("used", 100))
	kept := of("kept", 100)
	s.s.keep(&kept, 1, 9, s.now)
	s.want("keep kept")
	s.started(s.boxes[2], true)
	s.want()
	s.call(of("first", 100))
	s.want("evict b1", "cold first on n0")
	s.call(of("second", 100))
	s.want("evict b3", "cold second on n0")
	s.call(of("third", 100))
	s.want("evict b2", "cold third on n0")
}

// A decision looks at no group that lacks sandboxes but one of each size, however many do: because
// there is no room for them, or because their last start has failed.
func TestALackCostsNoDecision(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour}, sized(1000, 1050))
	for n := range 1000 {
		kept := of(fmt.Sprint("kept", n), 100)
		s.s.keep(&kept, 1, 2000, s.now)
	}
	large := of("large", 400)
	s.s.keep(&large, 1, 2000, s.now)
	s.settle()
	for _, b := range s.boxes {
		s.started(b, false)
	}
	s.settle() // ten others have got the room of six and the large one
	if len(s.s.lacking) != 1 || s.s.lacking[0].groups.n != 984 {
		t.Errorf("%d sizes lack, %d groups of the smallest", len(s.s.lacking),
			s.s.lacking[0].groups.n)
	}
	s.check()
	s.call(with(of("a", 10), func(d *Demand) { d.Namespace = "y" }))
	s.want("cold a on n0")
	s.pass(2 * time.Second)
	s.settle()
	if len(s.s.lacking) != 2 || s.s.lacking[0].groups.n != 990 {
		t.Errorf("%d lack after those that failed are tried again", s.s.lacking[0].groups.n)
	}
}

// A scaled group has as many sandboxes as it is told: one demand starts one at most, the others
// wait for the first that is free, and what idles beyond the number ends.
func TestAScaledGroupHasAsManyAsItIsTold(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute, PauseAfter: 10 * time.Second})
	first := s.call(one)
	s.want("cold a on n0")
	second, third := s.call(one), s.call(one)
	s.want() // one is on its way, and more are not wanted
	s.s.keep(&one, 2, 9, s.now)
	s.want("keep a")
	s.started(s.boxes[1], true)
	s.want("warm a in b2") // whichever is free first
	s.started(s.boxes[0], true)
	s.finish(second, true)
	s.want("warm a in b2")
	s.finish(first, true)
	s.finish(third, true)
	s.pass(time.Hour)
	s.want("pause b2", "pause b1") // however long they idle
	s.s.keep(&one, 1, 9, s.now)
	s.want("expire b1")
	if g := s.groupOf("a"); g.live != 1 || g.ready != 1 {
		t.Errorf("%d live, %d ready", g.live, g.ready)
	}
	busy := s.call(one)
	s.want("warm a in b2")
	s.s.keep(&one, 0, 9, s.now)
	s.want()
	s.finish(busy, true)
	s.want("expire b2")
	if s.groupOf("a") != nil {
		t.Error("a group of none is remembered")
	}
}

// Where room is short, a start that a scaled group lacks has its turn as any job has.
func TestAScaledGroupHasItsTurn(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute}, sized(2, unbounded))
	s.begun(one)
	other := s.idling(of("other", 100))
	s.call(one)
	s.s.keep(&one, 2, 9, s.now)
	s.want("evict "+other.id, "keep a")
	s.started(s.boxes[2], false)
	s.want() // it is not tried again at once
	s.pass(2 * time.Second)
	s.want("keep a")
	s.started(s.boxes[3], true)
	s.want("warm a in b4")
}

// Sandboxes that are never full share what comes to their group.
func TestSandboxesThatAreNeverFullHaveTheirTurn(t *testing.T) {
	one := neverFull("a")
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 3, 9, s.now)
	s.want("keep a", "keep a", "keep a")
	for _, b := range s.boxes[:3] {
		s.started(b, true)
	}
	for range 300 {
		s.call(one)
		s.settle()
	}
	for _, b := range s.boxes[:3] {
		if b.used != 100 {
			t.Errorf("%s has %d of 300", b.id, b.used)
		}
	}
}

// neverFull is a scaled demand whose sandboxes take any number of jobs.
func neverFull(group string) Demand {
	return with(of(group, 100), func(d *Demand) { d.Scaled, d.Concurrency = true, Endless })
}

// Sandboxes that are never full run empty and end when their group is to have less, though jobs
// come all the time; those that stay share these.
func TestALevelFallsUnderLoad(t *testing.T) {
	one := neverFull("a")
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 5, 9, s.now)
	s.settle()
	for _, b := range s.boxes {
		s.started(b, true)
	}
	for range 100 {
		s.call(one)
		s.settle()
	}
	s.s.keep(&one, 2, 9, s.now)
	for _, job := range s.jobs[:100] {
		s.call(one)
		s.finish(job, true)
		s.settle()
		s.check()
	}
	if g := s.groupOf("a"); g.live != 2 {
		t.Errorf("%d sandboxes, want 2", g.live)
	}
	for _, b := range s.boxes[3:] {
		if b.used != 50 {
			t.Errorf("%s has %d of 100", b.id, b.used)
		}
	}
}

// Jobs that come one after another have the sandbox that is awake, also where one of them lasts;
// those that overlap wake another where each that is awake has one besides.
func TestJobsWakeNoMoreThanTheyNeed(t *testing.T) {
	one := with(neverFull("a"), func(d *Demand) { d.PauseAfter = 10 * time.Second })
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 3, 9, s.now)
	s.settle()
	for _, b := range s.boxes {
		s.started(b, true)
	}
	for range 5 {
		s.finish(s.begun(one), true)
		s.pass(4 * time.Second)
	}
	s.want() // two were paused, and are so still
	paused := func(want int) {
		t.Helper()
		n := 0
		for _, b := range s.boxes {
			if b.phase == paused {
				n++
			}
		}
		if n != want {
			t.Errorf("%d are paused, want %d", n, want)
		}
	}
	paused(2)
	lasts := s.begun(one)
	for range 5 {
		s.finish(s.begun(one), true)
		paused(2)
		s.pass(6 * time.Second)
	}
	for range 5 {
		first, second := s.begun(one), s.begun(one)
		paused(1)
		s.finish(first, true)
		s.finish(second, true)
		s.pass(4 * time.Second)
	}
	s.finish(lasts, true)
}

// A program that is kept and ends soon after each start is started less and less often; one that
// has lived for long is started again at once.
func TestAKeptProgramThatCrashesRests(t *testing.T) {
	kept := of("a", 100)
	s := newScene(t, Config{KeepAlive: time.Hour})
	s.s.keep(&kept, 3, 9, s.now)
	s.settle()
	crash := func(b *box) {
		if b.phase == starting {
			s.started(b, true)
		}
		s.pass(50 * time.Millisecond)
		s.s.ended(b.node, b.id, errors.New("it ended with 1"), s.now)
	}
	for ends := s.now.Add(10 * time.Minute); s.now.Before(ends); s.pass(time.Second) {
		s.settle()
		s.check()
		for _, b := range s.boxes {
			if b.phase == starting {
				crash(b)
			}
		}
		s.s.keep(&kept, 3, 9, s.now) // who wishes for them again changes nothing
	}
	if n := len(s.boxes); n < 3*13 || n > 3*16 {
		t.Errorf("%d starts in 10 min, want those of about 15 tries", n)
	}
	s.pass(time.Minute)
	s.settle()
	last := s.boxes[len(s.boxes)-1]
	s.started(last, true)
	s.pass(time.Hour)
	crash(last)
	s.want("keep a")
}

// A scaled group that is retired keeps nothing, also where jobs wait for it.
func TestARetiredScaledGroupKeepsNothing(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 1, 9, s.now)
	s.want("keep a")
	waiter := s.call(one)
	s.want()
	s.s.retire(slices.Values([]*group{s.groupOf("a")}), s.now)
	s.settle()
	s.started(s.boxes[0], true)
	s.settle()
	if waiter.box != nil && waiter.box.phase == starting {
		s.started(waiter.box, true)
	}
	s.settle()
	s.finish(waiter, true)
	s.settle()
	if g := s.groupOf("a"); g != nil && g.members.n > 0 {
		t.Errorf("%d sandboxes are left", g.members.n)
	}
}

// Nor does it where a job of it is met elsewhere afterwards.
func TestARetiredScaledGroupKeepsNothingForOneThatComesAgain(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute})
	job := s.begun(one)
	s.s.retire(slices.Values([]*group{s.groupOf("a")}), s.now)
	s.tryAgain(job)
	s.want("expire b1", "cold a on n0")
	s.started(job.box, true)
	s.finish(job, true)
	s.want("expire b2")
	if s.groupOf("a") != nil {
		t.Error("a group of none is remembered")
	}
}

// A sandbox that takes jobs again, as its node drains no more, leaves no other beyond the number.
func TestASandboxComesBackToAScaledGroup(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute}, sized(9, unbounded), sized(9, unbounded))
	s.begun(one)
	v := sized(9, unbounded)
	v.draining = true
	s.s.looked(s.s.nodes[0], v, s.now)
	s.idling(one)
	v.draining = false
	s.s.looked(s.s.nodes[0], v, s.now)
	s.want("expire b2")
}

// A start that a job waited for and that failed is followed by none at once that nobody waits for.
func TestAFailedColdStartIsNotKept(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.call(one)
	s.want("cold a on n0")
	s.s.keep(&one, 1, 9, s.now)
	s.want()
	s.started(s.boxes[0], false)
	s.want()
	s.call(one)
	s.want("cold a on n0") // a waiting call does not rest
	s.started(s.boxes[1], false)
	s.s.keep(&one, 0, 9, s.now)
	s.pass(time.Minute)
	s.want()
}

// Where a scaled group is to have less, those end first that rest: what is left takes jobs, and
// where nothing is left a job starts the next.
func TestThoseThatRestEndFirst(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 2, 9, s.now)
	s.settle()
	for _, b := range s.boxes[:2] {
		s.started(b, true)
	}
	busy := s.begun(one)
	other := s.boxes[0]
	if busy.box == other {
		other = s.boxes[1]
	}
	s.s.setRest(other, true, s.now)
	s.s.keep(&one, 1, 9, s.now)
	s.want("expire " + other.id)
	s.finish(busy, true)
	s.want()
	s.s.setRest(busy.box, true, s.now)
	s.s.keep(&one, 0, 9, s.now)
	s.want("expire " + busy.box.id)
	s.call(one)
	s.want("cold a on n0")
}

// One that takes jobs again, as its node is back, stays in the place of one that rests.
func TestASandboxComesBackInThePlaceOfOneThatRests(t *testing.T) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s := newScene(t, Config{KeepAlive: time.Minute}, sized(9, unbounded), sized(9, unbounded))
	s.idling(one)
	s.s.unreached(s.s.nodes[0], "it does not answer", s.now)
	s.s.setRest(s.idling(one), true, s.now)
	s.s.looked(s.s.nodes[0], sized(9, unbounded), s.now)
	s.want("expire b2")
}

// growing is a scaled group of one busy and one idle sandbox, which grow tells to have three.
func growing(t *testing.T) (s scene, grow func(), busy *task) {
	one := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s = newScene(t, Config{KeepAlive: time.Minute})
	s.s.keep(&one, 2, 9, s.now)
	s.settle()
	for _, b := range s.boxes[:2] {
		s.started(b, true)
	}
	busy = s.begun(one)
	return s, func() { s.s.keep(&one, 3, 9, s.now) }, busy
}

// A young sandbox that ends under a job holds no other back, as the job may be to blame; one that
// ends by itself does, and so does one that does not live.
func TestWhichEndsHoldStartsBack(t *testing.T) {
	crash := errors.New("it ended with 1")
	s, grow, busy := growing(t)
	s.s.ended(busy.box.node, busy.box.id, crash, s.now)
	grow()
	s.want("keep a", "keep a")
	for _, end := range []func(s scene, b *box){
		func(s scene, b *box) { s.s.ended(b.node, b.id, crash, s.now) },
		func(s scene, b *box) { s.s.fail(b, crash, s.now) },
	} {
		s, grow, _ := growing(t)
		idle := s.boxes[0]
		if !idle.idles() {
			idle = s.boxes[1]
		}
		end(s, idle)
		grow()
		s.want()
		s.call(with(of("a", 100), func(d *Demand) { d.Scaled = true }))
		s.want()
		job := s.jobs[len(s.jobs)-1].w
		if why := s.s.why(job, s.now); why != string(Resting)+", 0 ahead" {
			t.Errorf("it waits as %s", why)
		}
		if shot := s.s.snapshot(s.now); shot.Queue[Resting] != 1 {
			t.Errorf("waiting are %v", shot.Queue)
		}
		s.pass(2 * time.Second)
		s.want("keep a", "keep a")
	}
}

// A start that fails by its node says nothing of the program: the next is made soon, and ever more
// seldom where the node refuses again.
func TestAStartThatItsNodeRefusesIsNoFailure(t *testing.T) {
	for _, c := range []struct {
		why   error
		rests time.Duration
	}{
		{status.Error(codes.ResourceExhausted, "no place"), untilAsked},
		{status.Error(codes.Unavailable, "connection refused"), untilAsked},
		{&elsewhere{why: "the node was given up"}, untilAsked},
		{status.Error(codes.Internal, "it ended with 1"), 2 * time.Second},
	} {
		s, grow, _ := growing(t)
		grow()
		s.settle()
		g := s.groupOf("a")
		if n := g.started(); n != 2 || g.live != 3 {
			t.Errorf("%d of %d are started", n, g.live)
		}
		rests := c.rests
		for range 3 {
			s.s.started(s.boxes[len(s.boxes)-1], outcome{err: c.why}, s.now)
			s.want()
			s.pass(rests - time.Millisecond)
			s.want()
			s.pass(time.Millisecond)
			s.want("keep a")
			rests *= 2
		}
		if failed := g.tries.fails > 0; failed != (c.rests > untilAsked) {
			t.Errorf("%v counts as %d failures", c.why, g.tries.fails)
		}
	}
	var both attempts // of which one was refused, and the other fails
	now := time.Now()
	both.refused(now)
	both.failed(now, now)
	if both.fails != 1 || both.after.Sub(now) != 2*time.Second {
		t.Errorf("%+v", both)
	}
}

// Sandboxes whose starts began together fail once, however long those took; and a program that is
// slow to start rests ever longer, too.
func TestARestCountsFromTheStartsBeginning(t *testing.T) {
	kept := of("a", 100)
	s := newScene(t, Config{KeepAlive: time.Hour})
	crash := func(b *box, after time.Duration) {
		s.pass(after)
		s.started(b, true)
		s.s.ended(b.node, b.id, errors.New("it ended with 1"), s.now)
	}
	s.s.keep(&kept, 3, 9, s.now)
	s.settle()
	for _, b := range s.boxes[:3] {
		crash(b, 3*time.Second)
	}
	tries := &s.groupOf("a").tries
	if tries.fails != 1 {
		t.Errorf("three that began together failed %d times", tries.fails)
	}
	s.s.keep(&kept, 1, 9, s.now)
	for n := 2; n < 5; n++ {
		s.now = tries.after
		s.want("keep a")
		crash(s.boxes[len(s.boxes)-1], 70*time.Second)
		if tries.fails != n {
			t.Errorf("%d failures in a row, want %d", tries.fails, n)
		}
	}
}

// Of groups that lack sandboxes each starts one in its turn, whatever their size.
func TestTheOneThatLacksMostDoesNotGetEverything(t *testing.T) {
	s := newScene(t, Config{}, sized(6, unbounded))
	many, one := of("many", 100), with(of("one", 100), func(d *Demand) { d.Namespace = "y" })
	larger := with(of("larger", 200), func(d *Demand) { d.Namespace = "z" })
	full := s.call(of("full", 100))
	s.settle()
	s.s.looked(s.s.nodes[0], sized(1, unbounded), s.now)
	s.s.keep(&many, 1000, 1000, s.now)
	s.s.keep(&one, 1, 9, s.now)
	s.s.keep(&larger, 2, 9, s.now)
	s.want()
	s.s.looked(s.s.nodes[0], sized(6, unbounded), s.now)
	s.want("keep many", "keep larger", "keep one", "keep larger", "keep many")
	s.started(full.box, true)
	s.finish(full, false)
	s.want("expire b1", "keep many")
}

// A job that only a node out of reach could hold stops nothing that is kept elsewhere; where a job
// could have the room, nothing else takes it.
func TestAJobThatNoNodeHoldsStopsNoKeptStart(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 50, Count: 1}
	s := newScene(t, Config{}, sized(unbounded, 500), sized(unbounded, 2000))
	s.s.stems = append(s.s.stems, newStem(cell))
	s.s.unreached(s.s.nodes[1], "n1 is off", s.now)
	s.call(of("huge", 1000))
	kept := with(of("kept", 100), func(d *Demand) { d.Namespace = "y" })
	s.s.keep(&kept, 1, 9, s.now)
	s.want("keep kept", "stem")
	s.call(of("large", 400))
	s.s.keep(&kept, 2, 9, s.now)
	s.want()
}

// Nor does it stop what is started for a group that will be called soon.
func TestAJobThatNoNodeHoldsStopsNoStartAhead(t *testing.T) {
	s := newScene(t, Config{Policy: foreseen{}}, sized(unbounded, 500), sized(unbounded, 2000))
	s.s.unreached(s.s.nodes[1], "n1 is off", s.now)
	s.finish(s.begun(of("a", 100)), true)
	s.want("expire b1")
	s.call(of("huge", 1000))
	s.pass(2 * time.Second)
	s.want("revive a")
	s.started(s.boxes[1], true)
	s.finish(s.begun(of("a", 100)), true)
	s.want("expire b2")
	s.begun(of("busy", 300))
	s.call(of("large", 400))
	s.pass(2 * time.Second)
	s.want("claim large")
}
