package pool

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A load is a function that is called whenever fewer than waiting of its jobs wait: there is always
// more of it than can be run, or, where it has a pause, again and again so many at once, and its
// sandboxes idle between.
type load struct {
	job     Demand
	runs    time.Duration
	waiting int
	since   time.Time
	pause   time.Duration
}

// An overload is a world with loads, in ticks: what starts has started a tick later, what runs ends
// in its time.
type overload struct {
	*world
	loads  []load
	ends   map[*task]time.Time
	served map[string]time.Duration // MiB times the time it was held, by namespace
}

const tick = 50 * time.Millisecond

func newOverload(t interface{ Fatalf(string, ...any) }, capacity view, loads ...load) *overload {
	w := newWorld(Config{KeepAlive: time.Hour}, t.Fatalf, nil, capacity)
	return &overload{w, loads, map[*task]time.Time{}, map[string]time.Duration{}}
}

func (o *overload) tick() {
	o.now = o.now.Add(tick)
	for _, b := range o.boxes {
		if b.phase == starting {
			o.started(b, true)
		}
	}
	var live []*task
	for _, t := range o.jobs {
		switch end, known := o.ends[t]; {
		case runs(t) && !known && t.job.Endless:
			o.ends[t] = o.now // it was told to
		case runs(t) && !known:
			o.ends[t] = o.now.Add(o.loadOf(t).runs)
		case known && !o.now.Before(end):
			o.finish(t, true)
			delete(o.ends, t)
		}
		if !t.over {
			live = append(live, t)
		}
	}
	o.jobs = live
	o.boxes = still(o.boxes)
	o.call()
	o.settle()
	for name, sp := range o.s.spaces {
		o.served[name] += time.Duration(sp.held) * tick
	}
}

func (o *overload) call() {
	for i := range o.loads {
		l := &o.loads[i]
		waits := 0
		for _, t := range o.jobs {
			if t.waits() && t.job.Group == l.job.Group {
				waits++
			}
		}
		for ; waits < l.waiting && !o.now.Before(l.since); waits++ {
			o.arrive(l.job, time.Hour)
		}
		if l.pause > 0 && !o.now.Before(l.since) {
			l.since = o.now.Add(l.pause)
		}
	}
}

func (o *overload) loadOf(t *task) load {
	for _, l := range o.loads {
		if l.job.Group == t.job.Group {
			return l
		}
	}
	return load{runs: time.Second}
}

func still(boxes []*box) (left []*box) {
	for _, b := range boxes {
		if b.phase != gone {
			left = append(left, b)
		}
	}
	return left
}

// However many small jobs there are, a large one is started: within patience, and the longest run
// for each claim that may be before its own, which are as many as there are groups.
func TestNobodyStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, values ...int) int {
			return rapid.SampledFrom(values).Draw(t, name)
		}
		var loads []load
		longest := time.Duration(0)
		for i := range rapid.IntRange(1, 6).Draw(t, "loads") {
			l := load{waiting: pick("waiting", 1, 2)}
			l.runs = time.Duration(pick("runs", 100, 700, 2000)) * time.Millisecond
			l.pause = time.Duration(pick("pause", 0, 0, 150, 2500)) * time.Millisecond
			l.job = Demand{
				Namespace: fmt.Sprint(pick("namespace", 1, 2, 3)), Group: fmt.Sprint("g", i),
				MemoryMiB: pick("memory", 50, 128, 300), Concurrency: pick("concurrency", 1, 3),
				Endless: pick("endless", 0, 0, 1) == 1,
			}
			loads = append(loads, l)
			longest = max(longest, l.runs)
		}
		node := sized(pick("places", 2, 5, unbounded), pick("capacity", 512, 1000, 1700))
		o := newOverload(t, node, loads...)
		for range 60 {
			o.tick()
		}
		whose := fmt.Sprint(pick("whose", 1, 4))
		large := o.arrive(Demand{Namespace: whose, Group: "large", MemoryMiB: 512}, time.Hour)
		arrived := o.now
		bound := testPatience + time.Duration(len(loads)+1)*(longest+4*tick)
		for ; large.waits(); o.tick() {
			if waited := o.now.Sub(arrived); waited > bound {
				t.Fatalf("it waits for %s, %s are the most; %+v",
					waited, bound, o.s.snapshot(o.now))
			}
		}
	})
}

// Two namespaces that always want more come to hold the same, whatever they ask for and whoever
// came first.
func TestNamespacesShareFairly(t *testing.T) {
	calls := func(namespace, group string, memory int, runs time.Duration, waiting int) load {
		job := Demand{Namespace: namespace, Group: group, MemoryMiB: memory}
		return load{job: job, runs: runs, waiting: waiting}
	}
	late := func(l load) load { l.since = t0.Add(5 * time.Second); return l }
	for name, loads := range map[string][]load{
		"alike":                   {calls("x", "a", 100, time.Second, 5), calls("y", "b", 100, time.Second, 5)},
		"one came late":           {calls("x", "a", 100, time.Second, 10), late(calls("y", "b", 100, time.Second, 10))},
		"one has many actions":    {calls("x", "a", 100, time.Second, 4), calls("x", "c", 100, time.Second, 4), calls("x", "d", 100, time.Second, 4), late(calls("y", "b", 100, time.Second, 5))},
		"one runs longer":         {calls("x", "a", 100, 3*time.Second, 10), late(calls("y", "b", 100, time.Second/2, 10))},
		"one needs more memory":   {calls("x", "a", 250, time.Second, 10), late(calls("y", "b", 100, time.Second, 10))},
		"one is small and late":   {calls("x", "a", 100, time.Second, 10), late(calls("y", "b", 250, time.Second, 10))},
		"one wants a little more": {calls("x", "a", 100, time.Second, 12), late(calls("y", "b", 100, time.Second, 6))},
	} {
		o := newOverload(t, sized(unbounded, 1000), loads...)
		for range int(30 * time.Second / tick) {
			o.tick()
		}
		clear(o.served)
		for range int(60 * time.Second / tick) {
			o.tick()
		}
		x, y := o.served["x"].Seconds(), o.served["y"].Seconds()
		if least, most := 0.66, 1.5; x/y < least || x/y > most {
			t.Errorf("%s: %.0f and %.0f MiB·s", name, x, y)
		}
		t.Logf("%s: %.0f and %.0f MiB·s of %d", name, x, y, 60*1000)
	}
}
