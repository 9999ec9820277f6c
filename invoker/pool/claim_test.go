package pool

import (
	"fmt"
	"testing"
	"time"
)

// A group whose last start has failed gives its claim up: it starts nothing for a while, and what
// was to end for it goes on.
func TestAGroupThatRestsClaimsNothing(t *testing.T) {
	s := newScene(t, Config{}, sized(unbounded, 700))
	for range 5 {
		s.begun(with(of("b", 100), func(d *Demand) { d.Namespace = "y" }))
	}
	a := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s.s.keep(&a, 3, 9, s.now)
	s.want("keep a", "keep a")
	s.call(a)
	s.call(a)
	s.pass(testPatience)
	s.want("claim a")
	s.started(s.boxes[6], false)
	s.want()
	s.started(s.boxes[5], true)
	s.want("warm a in b6")
	for _, b := range s.boxes[:5] {
		if b.claimed {
			t.Errorf("%s is to end for nobody", b.id)
		}
	}
}

// What idles and is counted on for a claim ends at once: else a job would use it again, and who
// claims would wait for that as well.
func TestNobodyUsesWhatAClaimCountsOn(t *testing.T) {
	cell := StemCell{Image: "python", MemoryMiB: 100, Count: 1}
	s := newScene(t, Config{StemCells: []StemCell{cell}, KeepAlive: time.Hour}, sized(4, 500))
	s.started(s.boxes[0], true)
	busy := s.begun(of("busy", 100))
	s.idling(of("warm", 100))
	s.call(with(of("large", 450), func(d *Demand) { d.Namespace = "y" }))
	s.pass(testPatience)
	s.want("claim large", "evict b1", "evict b3")
	s.call(of("warm", 100))
	s.call(with(of("python", 100), func(d *Demand) { d.Image, d.Stem = "python", true }))
	s.want()
	s.finish(busy, true)
	s.want("evict b2", "cold large on n0")
}

// What a claim does not need stays, and is used; a start beside the claim ends that before it
// takes what the claim counts on.
func TestAClaimEndsNoMoreThanItNeeds(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour}, sized(unbounded, 700))
	busy := s.begun(of("busy", 300))
	first := s.idling(of("first", 100))
	s.pass(time.Millisecond)
	other := s.idling(of("other", 200)) // and 100 MiB are free
	s.call(with(of("large", 500), func(d *Demand) { d.Namespace = "y" }))
	s.pass(testPatience)
	s.want("claim large", "evict "+first.id)
	s.finish(s.begun(of("other", 200)), true)
	s.call(of("small", 150)) // 200 MiB are free, and the claim counts on them
	s.want("evict "+other.id, "cold small on n0")
	s.call(of("warm", 100))
	s.want()
	s.finish(busy, true)
	s.want("evict "+busy.box.id, "cold large on n0")
}

// Groups that no node in reach can hold do not keep others from a claim, however many they are and
// however long they have waited.
func TestWhatNoNodeHoldsKeepsNobodyFromAClaim(t *testing.T) {
	s := newScene(t, Config{}, sized(unbounded, 500), sized(unbounded, 2000))
	s.s.unreached(s.s.nodes[1], "n1 is off", s.now)
	busy := s.begun(of("busy", 300))
	for n := range testQueue - 1 {
		s.call(of(fmt.Sprint("huge", n), 1000))
	}
	s.call(of("large", 400))
	s.pass(testPatience)
	s.want("claim large")
	s.finish(busy, true)
	s.want("evict b1", "cold large on n0")
}

// Nor does a job that no node can hold now, as that one is out of reach or has another claim: who
// has a sandbox already claims where his namespace holds less than others, though that job's holds
// nothing.
func TestWhatNoNodeHoldsNowKeepsNobodyFromAFairClaim(t *testing.T) {
	in := func(namespace string, job Demand) Demand { job.Namespace = namespace; return job }
	poor := in("y", of("poor", 100))
	for _, c := range []struct {
		reached bool
		small   int // sandboxes that fill what is in reach
		want    []string
	}{
		{false, 4, []string{"claim poor"}},
		{true, 14, []string{"claim first", "claim poor"}},
	} {
		s := newScene(t, Config{}, sized(unbounded, 500), sized(unbounded, 1000))
		s.s.unreached(s.s.nodes[1], "n1 is off", s.now)
		s.begun(poor)
		if c.reached {
			s.s.looked(s.s.nodes[1], sized(unbounded, 1000), s.now)
		}
		for range c.small {
			s.begun(of("small", 100))
		}
		if c.reached {
			s.call(of("first", 1000))
		}
		s.call(in("z", of("huge", 1000)))
		s.call(poor)
		s.pass(testPatience)
		s.want(c.want...)
	}
}

// What ends for a claim counts as evicted, and is said to end for who claims.
func TestWhatEndsForAClaimIsEvicted(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour}, sized(unbounded, 500))
	s.idling(of("warm", 100))
	s.begun(of("busy", 300))
	s.call(with(of("large", 500), func(d *Demand) { d.Namespace = "y" }))
	s.pass(testPatience)
	for s.s.counts[Claim] == 0 {
		do, more := decide(s.s, s.now)
		if !more {
			t.Fatal("nobody claims")
		}
		s.carryOut(do)
	}
	do, _ := decide(s.s, s.now)
	if do.kind != Evict || do.why != "its room is claimed by large" {
		t.Errorf("%s: %s", show(do), do.why)
	}
}
