package pool

import (
	"testing"
	"time"
)

// What was left warm on a node that is met late joins its group as that is by now: it changes
// nothing of the group, and makes it no larger than it may be.
func TestWhatWasLeftJoinsItsGroupAsItIs(t *testing.T) {
	s := newScene(t, Config{KeepAlive: time.Hour}, sized(9, unbounded), sized(9, unbounded))
	own := Bounds{Max: 2, KeepAlive: time.Minute}
	s.begun(with(of("a", 100), func(d *Demand) { d.Bounds, d.Concurrency = own, 3 }))
	late := s.s.nodes[1]
	g := s.groupOf("a")
	left := Left{Sandbox: "l1", Namespace: "x", Group: "a", MemoryMiB: 100, Slots: 1}
	if !s.s.takeOver(late, left, s.now) {
		t.Error("the group may have two")
	}
	if b := late.boxes["l1"]; b == nil || b.slots != 3 {
		t.Errorf("%+v", b)
	}
	left.Sandbox = "l2"
	if s.s.takeOver(late, left, s.now) || g.members.n != 2 {
		t.Errorf("it has %d", g.members.n)
	}
	if s.groupOf("a") != g || g.bounds != own || g.slots != 3 {
		t.Errorf("%+v, %d slots", g.bounds, g.slots)
	}
	left.Group, left.Sandbox, left.Slots = "b", "l3", 5
	if !s.s.takeOver(late, left, s.now) || late.boxes["l3"].slots != 5 {
		t.Error("nobody has asked for its group yet")
	}
	s.boxes = append(s.boxes, late.boxes["l1"], late.boxes["l3"])
	s.want()
}
