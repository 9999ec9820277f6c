package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// adopts is the status of a node with VFs that is adopting sandboxes.
func adopts(inOrder int, ids ...string) *api.StatusReply {
	reply := vfs(inOrder)
	for _, id := range ids {
		reply.Sandboxes = append(reply.Sandboxes,
			&api.Sandbox{Id: id, State: "adopting", MemoryMib: 100})
	}
	return reply
}

// leftBy says that a former pool left a sandbox of group a.
func leftBy(id string) Left {
	return Left{Node: "local", Sandbox: id, Group: "a", MemoryMiB: 100, Slots: 1}
}

// scaled has the demand's group have as many sandboxes as are kept.
func scaled(d Demand) Demand {
	d.Scaled = true
	return d
}

// When both restart, the pool meets a node that still adopts what was left. It takes that at once,
// as its node has calls wait until it is adopted, and goes elsewhere where it is not.
func TestWhatIsBeingAdoptedIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(adopts(7, "warm", "paused", "gone", "strange"))
		for _, id := range []string{"warm", "paused", "strange"} {
			n.live[id] = true
		}
		paused := leftBy("paused")
		paused.Paused = true // an adoption resumes it
		p := New(Config{KeepAlive: time.Minute, Wait: 30 * time.Second, Start: time.Minute,
			Left: []Left{leftBy("warm"), paused, leftBy("gone")}}, api.Local(n))
		synctest.Wait()
		if live, _ := n.count(); live != 2 || n.live["strange"] {
			t.Errorf("%d live, want those that were left", live)
		}
		cold := 0
		for _, end := range atOnce(p, repeat(work("a"), 3)...) {
			if end.err != nil {
				t.Error(end.err)
			}
			if end.Cold {
				cold++
			}
		}
		if cold != 1 || n.resumes != 0 {
			t.Errorf("%d were cold, %d were resumed", cold, n.resumes)
		}
		p.Close()
		if live, _ := n.count(); live > 0 {
			t.Errorf("%d sandboxes left on the node", live)
		}
	})
}

// What is still being adopted when the pool leaves is left to the next one; so is what a node has
// that the pool has not met, or that is out of reach.
func TestWhatIsNotMetIsLeft(t *testing.T) {
	for name, met := range map[string]bool{"adopting": true, "not met": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFake(adopts(1, "warm"))
				n.live["warm"] = true
				n.setDeaf(!met)
				warm := leftBy("warm")
				p := New(Config{KeepAlive: time.Minute, Left: []Left{warm}}, api.Local(n))
				n.setDeaf(true)
				time.Sleep(3 * heartbeat)
				if left := p.Leave(); len(left) != 1 || left[0] != warm {
					t.Errorf("left: %+v", left)
				}
				if live, _ := n.count(); live != 1 {
					t.Error("it was ended")
				}
			})
		})
	}
}

// What is being adopted is one of its group and has its room: nothing is started beside it, for a
// call or to be kept.
func TestWhatIsBeingAdoptedIsOfItsGroup(t *testing.T) {
	for _, room := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			n := newFake(adopts(room, "warm"))
			n.live["warm"] = true
			p := New(Config{KeepAlive: time.Minute, Wait: 30 * time.Second,
				Left: []Left{leftBy("warm")}}, api.Local(n))
			synctest.Wait()
			p.Keep(scaled(work("a").Demand), 1, 9)
			if end := do(p, work("a")); end.Cold || end.err != nil {
				t.Errorf("%+v", end)
			}
			synctest.Wait()
			if len(n.starts) > 0 {
				t.Errorf("%d were started", len(n.starts))
			}
			p.Close()
		})
	}
}

// A pool that leaves starts nothing in the room of what it leaves, though its group keeps one.
func TestAPoolThatLeavesStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(vfs(2))
		p := New(Config{KeepAlive: time.Minute, Wait: 30 * time.Second, Start: time.Minute},
			api.Local(n))
		kept := scaled(work("a").Demand)
		p.Keep(kept, 1, 9)
		time.Sleep(2 * startTime)
		if left := p.Leave(); len(left) != 1 || len(n.starts) != 1 {
			t.Errorf("%d are left, of %d that were started", len(left), len(n.starts))
		}
		if live, _ := n.count(); live != 1 {
			t.Errorf("%d live", live)
		}
	})
}

// A sandbox that is ready comes before one that is being adopted: to a call, and where the group
// has room for one of them.
func TestWhoIsReadyComesFirst(t *testing.T) {
	for _, ids := range [][]string{{"adopting", "ready"}, {"ready", "adopting"}} {
		for most := range 3 {
			synctest.Test(t, func(t *testing.T) {
				n := newFake(adopts(7, ids...))
				for i, id := range ids {
					n.status.Sandboxes[i].State = id
					n.live[id] = true
				}
				n.setDeaf(true)
				p := New(Config{KeepAlive: time.Minute, Wait: time.Minute,
					Left: []Left{leftBy(ids[0]), leftBy(ids[1])}}, api.Local(n))
				one := work("a")
				one.Bounds.Max = most // 0: as many as there is room for
				var end done
				over := make(chan struct{})
				go func() {
					end = do(p, one)
					close(over)
				}()
				synctest.Wait() // the group is known before the node
				n.setDeaf(false)
				<-over
				if live, _ := n.count(); end.Sandbox != "ready" || most == 1 && live != 1 {
					t.Errorf("%v, at most %d: %+v, %d live", ids, most, end, live)
				}
				p.Close()
			})
		}
	}
}

// So it is where another group takes the room of one.
func TestWhoIsBeingAdoptedIsEvictedFirst(t *testing.T) {
	for _, ids := range [][]string{{"adopting", "ready"}, {"ready", "adopting"}} {
		synctest.Test(t, func(t *testing.T) {
			n := newFake(adopts(2, ids...))
			for i, id := range ids {
				n.status.Sandboxes[i].State = id
				n.live[id] = true
			}
			p := New(Config{KeepAlive: time.Minute, Wait: time.Minute,
				Left: []Left{leftBy(ids[0]), leftBy(ids[1])}}, api.Local(n))
			synctest.Wait()
			if end := do(p, work("b")); end.err != nil || !n.live["ready"] || n.live["adopting"] {
				t.Errorf("%v: %+v, %v", ids, end, n.live)
			}
			p.Close()
		})
	}
}
