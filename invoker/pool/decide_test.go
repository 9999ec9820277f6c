package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func sandbox(id, group string, phase phase, since int) *box {
	return &box{id: id, group: group, memory: 100, phase: phase, since: at(since)}
}

func job(group string, memory, arrived, deadline int) *waiter {
	return &waiter{group: group, memory: memory, arrived: at(arrived), deadline: at(deadline)}
}

func show(steps []step) string {
	var words []string
	for _, s := range steps {
		switch {
		case s.why != "":
			words = append(words, "refuse "+s.waiter.group+": "+s.why)
		case s.waiter == nil:
			words = append(words, "stop "+s.box.id)
		case s.box != nil:
			words = append(words, "reuse "+s.box.id)
		default:
			words = append(words, "start "+s.waiter.group)
		}
	}
	return strings.Join(words, "; ")
}

func TestDecide(t *testing.T) {
	retired := sandbox("1", "a", idle, 0)
	retired.retired = true
	for _, c := range []struct {
		about string
		state state
		now   int
		want  string
	}{
		{"nothing to do", state{}, 0, ""},
		{"a cold group starts one sandbox per job", state{queue: []*waiter{job("a", 100, 0, 9), job("a", 100, 0, 9)}}, 0, "start a; start a"},
		{"a warm sandbox is reused, the last that idled",
			state{boxes: []*box{sandbox("1", "a", idle, 2), sandbox("2", "a", idle, 1)}, queue: []*waiter{job("a", 100, 3, 9)}}, 3, "reuse 1"},
		{"each sandbox takes one job",
			state{boxes: []*box{sandbox("1", "a", idle, 2)}, queue: []*waiter{job("a", 100, 3, 9), job("a", 100, 3, 9)}}, 3, "reuse 1; start a"},
		{"busy and foreign sandboxes are not reused",
			state{boxes: []*box{sandbox("1", "a", running, 0), sandbox("2", "b", idle, 0)}, queue: []*waiter{job("a", 100, 3, 9)}}, 3, "start a"},
		{"a full node lets the job wait",
			state{capacity: room{1, unbounded}, boxes: []*box{sandbox("1", "a", starting, 0)}, queue: []*waiter{job("a", 100, 3, 9)}}, 3, ""},
		{"until its deadline",
			state{capacity: room{1, unbounded}, boxes: []*box{sandbox("1", "a", starting, 0)}, queue: []*waiter{job("a", 100, 3, 9)}}, 9,
			"refuse a: the node can hold 1 sandboxes and all are busy; waited 6s"},
		{"the longest idle is evicted for another group",
			state{capacity: room{2, unbounded}, boxes: []*box{sandbox("1", "a", idle, 2), sandbox("2", "b", idle, 1)}, queue: []*waiter{job("c", 100, 3, 9)}}, 3,
			"stop 2; start c"},
		{"memory evicts as many as it takes",
			state{capacity: room{unbounded, 300}, boxes: []*box{sandbox("1", "a", idle, 2), sandbox("2", "b", idle, 1)}, queue: []*waiter{job("c", 250, 3, 9)}}, 3,
			"stop 2; stop 1; start c"},
		{"none is evicted in vain",
			state{capacity: room{unbounded, 300}, boxes: []*box{sandbox("1", "a", running, 2), sandbox("2", "b", idle, 1)}, queue: []*waiter{job("c", 250, 3, 9)}}, 3, ""},
		{"what can never fit is refused at once",
			state{capacity: room{unbounded, 300}, queue: []*waiter{job("c", 301, 3, 9)}}, 3, "refuse c: it needs 301 MiB and the node has 300 in all"},
		{"a sandbox takes more than its own memory",
			state{capacity: room{unbounded, 300}, overhead: 60, boxes: []*box{sandbox("1", "a", running, 0)}, queue: []*waiter{job("c", 100, 3, 3)}}, 3,
			"refuse c: 160 MiB are needed and 140 of the node's 300 are free; waited 0s"},
		{"a start that does not fit holds up the starts behind it, not the reuses",
			state{capacity: room{unbounded, 300}, boxes: []*box{sandbox("1", "a", running, 0), sandbox("2", "b", idle, 0)},
				queue: []*waiter{job("c", 250, 3, 9), job("d", 100, 3, 9), job("b", 100, 3, 9)}}, 3, "reuse 2"},
		{"keep-alive ends", state{keepAlive: 5 * time.Second, boxes: []*box{sandbox("1", "a", idle, 0), sandbox("2", "a", idle, 1)}}, 5, "stop 1"},
		{"a retired sandbox ends and serves nobody",
			state{keepAlive: time.Hour, boxes: []*box{retired}, queue: []*waiter{job("a", 100, 3, 9)}}, 3, "stop 1; start a"},
		{"a closed pool refuses and stops",
			state{closed: true, keepAlive: time.Hour, boxes: []*box{sandbox("1", "a", idle, 0), sandbox("2", "a", running, 0)}, queue: []*waiter{job("a", 100, 3, 9)}}, 3,
			"stop 1; refuse a: the invoker shuts down"},
	} {
		if c.state.keepAlive == 0 {
			c.state.keepAlive = time.Hour
		}
		if c.state.capacity == (room{}) {
			c.state.capacity = room{unbounded, unbounded}
		}
		if got := show(decide(&c.state, at(c.now))); got != c.want {
			t.Errorf("%s: got %q, want %q", c.about, got, c.want)
		}
	}
}

func TestMoveRefusesWhatIsNotAllowed(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a sandbox went from gone to idle")
		}
	}()
	sandbox("1", "a", gone, 0).move(idle, t0)
}

// Whatever happens in whatever order: the capacity holds, no sandbox has two jobs, nobody waits past the deadline, a job waits only
// if there is no place, and nothing is left to decide after the decision was applied.
func TestDecideKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &state{
			capacity:  room{rapid.SampledFrom([]int{0, 1, 2, 4, unbounded}).Draw(t, "sandboxes"), rapid.SampledFrom([]int{300, 500, unbounded}).Draw(t, "memory")},
			overhead:  rapid.SampledFrom([]int{0, 50}).Draw(t, "overhead"),
			keepAlive: 5 * time.Second,
		}
		now := t0
		for i := range rapid.IntRange(1, 40).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			happen(t, s, now, i)
			for _, do := range decide(s, now) {
				carryOut(t, s, do, now)
			}
			check(t, s, now)
		}
	})
}

func happen(t *rapid.T, s *state, now time.Time, i int) {
	busy := func(b *box) bool { return b.phase != idle }
	var pick []*box
	for _, b := range s.boxes {
		if busy(b) {
			pick = append(pick, b)
		}
	}
	if len(pick) > 0 && rapid.Bool().Draw(t, "one goes on") {
		b := rapid.SampledFrom(pick).Draw(t, "which")
		if b.phase == starting {
			b.move(running, now)
		} else {
			b.move(idle, now)
		}
		return
	}
	w := job(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "group"), rapid.SampledFrom([]int{100, 250, 400}).Draw(t, "need"), 0, 0)
	w.arrived, w.deadline = now, now.Add(4*time.Second)
	s.queue = append(s.queue, w)
	if i%7 == 6 && len(s.boxes) > 0 {
		s.boxes[0].retired = true
	}
}

func carryOut(t *rapid.T, s *state, do step, now time.Time) {
	if do.box != nil && do.box.phase != idle {
		t.Fatalf("%s while it is %s", show([]step{do}), do.box.phase)
	}
	if do.waiter != nil {
		s.queue = without(s.queue, do.waiter)
	}
	switch {
	case do.why != "":
	case do.waiter == nil:
		do.box.move(gone, now)
		s.boxes = without(s.boxes, do.box)
	case do.box != nil:
		if do.box.retired || do.box.group != do.waiter.group {
			t.Fatalf("%s was given to a job of %s", do.box.id, do.waiter.group)
		}
		do.box.move(running, now)
	default:
		s.boxes = append(s.boxes, &box{id: fmt.Sprint(len(s.boxes)), group: do.waiter.group, memory: do.waiter.memory, phase: starting, since: now})
	}
}

func without[T comparable](list []T, item T) []T {
	var rest []T
	for _, other := range list {
		if other != item {
			rest = append(rest, other)
		}
	}
	return rest
}

func check(t *rapid.T, s *state, now time.Time) {
	free := s.free()
	if free.sandboxes < 0 || free.memory < 0 {
		t.Fatalf("the node is overfull: %+v of %+v left", free, s.capacity)
	}
	if again := decide(s, now); len(again) > 0 {
		t.Fatalf("left to decide: %s", show(again))
	}
	for _, w := range s.queue {
		if !now.Before(w.deadline) {
			t.Fatalf("a job of %s waits past its deadline", w.group)
		}
	}
	if len(s.queue) > 0 && s.capacity == (room{unbounded, unbounded}) {
		t.Fatal("a job waits though nothing bounds the node")
	}
	if next := s.next(); !next.IsZero() && !next.After(now) {
		t.Fatalf("the next decision is due at %s, now is %s: the owner would spin", next, now)
	}
}
