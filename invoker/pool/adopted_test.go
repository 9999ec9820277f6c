package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// When both restart, the pool meets a node that still adopts what was left: it waits for those that
// it knows, and takes them as they are then. An adoption resumes what was paused.
func TestWhatIsBeingAdoptedIsWaitedFor(t *testing.T) {
	held := func(state string, ids ...string) *api.StatusReply {
		reply := &api.StatusReply{}
		for _, id := range ids {
			reply.Sandboxes = append(reply.Sandboxes,
				&api.Sandbox{Id: id, State: state, MemoryMib: 100})
		}
		return reply
	}
	synctest.Test(t, func(t *testing.T) {
		n := newFake(held("adopting", "warm", "paused", "gone", "strange"))
		for _, id := range []string{"warm", "paused", "strange"} {
			n.live[id] = true
		}
		var left []Left
		for _, id := range []string{"warm", "paused", "gone"} {
			left = append(left, Left{Node: "local", Sandbox: id, Group: "a", Image: "sim",
				MemoryMiB: 100, Slots: 1, Paused: id == "paused"})
		}
		p := New(Config{KeepAlive: time.Minute, Wait: 30 * time.Second, Left: left}, api.Local(n))
		synctest.Wait()
		if live, _ := n.count(); live != 2 {
			t.Errorf("%d live, want those that were left", live)
		}
		own := do(p, work("b"))
		n.become(held("ready", "warm", "paused", own.Sandbox))
		time.Sleep(2 * hurry)
		synctest.Wait()
		for _, end := range atOnce(p, work("a"), work("a"), work("b")) {
			if end.Cold || end.err != nil {
				t.Errorf("%+v", end)
			}
		}
		n.mu.Lock()
		looks := n.looks
		n.mu.Unlock()
		time.Sleep(heartbeat)
		n.mu.Lock()
		if n.looks > looks+1 {
			t.Errorf("%d looks though nothing is adopted any more", n.looks-looks)
		}
		n.mu.Unlock()
		p.Close()
		if live, _ := n.count(); live > 0 {
			t.Errorf("%d sandboxes left on the node", live)
		}
	})
}

// What is still being adopted when the pool leaves is left to the next one.
func TestWhatIsBeingAdoptedIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(&api.StatusReply{Sandboxes: []*api.Sandbox{
			{Id: "warm", State: "adopting", MemoryMib: 100}}})
		n.live["warm"] = true
		warm := Left{Node: "local", Sandbox: "warm", Group: "a", MemoryMiB: 100, Slots: 1}
		p := New(Config{KeepAlive: time.Minute, Left: []Left{warm}}, api.Local(n))
		if left := p.Leave(); len(left) != 1 || left[0] != warm {
			t.Errorf("left: %+v", left)
		}
		if live, _ := n.count(); live != 1 {
			t.Error("it was ended")
		}
	})
}

// The room of what is being adopted is taken: a call waits for it, and starts nothing beside.
func TestWhatIsBeingAdoptedHasItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := func(state string) *api.StatusReply {
			reply := vfs(1)
			reply.Sandboxes = []*api.Sandbox{{Id: "warm", State: state, MemoryMib: 100}}
			return reply
		}
		n := newFake(held("adopting"))
		n.live["warm"] = true
		p := New(Config{KeepAlive: time.Minute, Wait: 30 * time.Second, Left: []Left{{Node: "local",
			Sandbox: "warm", Group: "a", Image: "sim", MemoryMiB: 100, Slots: 1}}}, api.Local(n))
		synctest.Wait()
		go func() {
			time.Sleep(hurry)
			n.become(held("ready"))
		}()
		if end := do(p, work("a")); end.Cold || end.err != nil {
			t.Errorf("%+v", end)
		}
		p.Close()
	})
}
