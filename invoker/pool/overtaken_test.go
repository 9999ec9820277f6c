package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A start that is sent only after its node was given up, and came back, leaves no sandbox there.
func TestAStartThatItsNodesLossOvertookLeavesNothing(t *testing.T) {
	cfg := Config{LostAfter: 10 * time.Second}
	among(t, cfg, having(1), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		slow := work("slow")
		slow.Wait = 5 * time.Minute
		slow.Start = func() (*api.StartRequest, error) {
			time.Sleep(2 * time.Minute) // its code comes from a store that is slow
			return &api.StartRequest{Image: "sim"}, nil
		}
		end := make(chan done, 1)
		go func() { end <- do(p, slow) }()
		synctest.Wait()
		nodes[0].setDeaf(true)
		time.Sleep(time.Minute)
		nodes[0].setDeaf(false)
		<-end
		time.Sleep(time.Minute)
		shot := p.Snapshot()
		live, _ := nodes[0].count()
		if live != shot.Nodes[0].Boxes {
			t.Errorf("the node has %d sandboxes, the pool knows of %d", live, shot.Nodes[0].Boxes)
		}
	})
}

// A node that learns to tell ends, as by an upgrade, is heard.
func TestANodeThatIsUpgradedIsHeard(t *testing.T) {
	in(t, Config{KeepAlive: time.Hour}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		id := atOnce(p, work("a"))[0].Sandbox
		time.Sleep(time.Minute)
		n.mu.Lock()
		n.ends = make(chan *api.Ended)
		n.status = vfs(2)
		n.status.Sandboxes = []*api.Sandbox{{Id: id}}
		ends := n.ends
		n.mu.Unlock()
		time.Sleep(time.Minute)
		n.die(id)
		select {
		case ends <- &api.Ended{Id: id}:
		case <-time.After(time.Minute):
			t.Error("nobody listens")
		}
		synctest.Wait()
		if shot := p.Snapshot(); shot.Boxes["idle"] != 0 {
			t.Errorf("%+v", shot)
		}
	})
}

// Calls are served within a second or so of the undoing of a drain, not at the next heartbeat.
func TestTheUndoingOfADrainIsSeenSoon(t *testing.T) {
	drained := vfs(2)
	drained.Draining = true
	in(t, Config{}, drained, func(t *testing.T, p *Pool, n *fakeNode) {
		time.Sleep(21 * time.Second)
		n.become(vfs(2))
		begin := time.Now()
		for do(p, work("a")).err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(begin) - startTime - runTime; took > 2*hurry {
			t.Errorf("it took %s", took)
		}
	})
}

// A sandbox that ends after its start was answered, before the pool has taken that in, is gone.
func TestAnEndThatOvertakesTheStartOfAStemCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(vfs(2))
		n.ends = make(chan *api.Ended)
		first := true
		n.start = func(ctx context.Context, in *api.StartRequest) (*api.StartReply, error) {
			if first {
				first = false
				n.ends <- &api.Ended{Id: in.Id}
				n.die(in.Id)
				time.Sleep(time.Second)
			}
			return &api.StartReply{Id: in.Id, InitStatus: 200}, nil
		}
		cfg := Config{KeepAlive: time.Hour, Wait: time.Minute, Start: time.Minute,
			StemCells: []StemCell{{Image: "sim", MemoryMiB: 100, Count: 1}}}
		p := New(cfg, api.Local(n))
		time.Sleep(time.Minute)
		live, _ := n.count()
		if shot := p.Snapshot(); shot.Nodes[0].Boxes != live {
			t.Errorf("%d live, %+v", live, shot)
		}
		p.Close()
	})
}

// A demand that has to go elsewhere when its wait is over is met where there is room for it.
func TestADemandGoesElsewhereThoughItsWaitIsOver(t *testing.T) {
	cfg := Config{KeepAlive: time.Hour, PauseAfter: time.Second}
	among(t, cfg, having(2), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		n := nodes[0]
		id := do(p, work("a")).Sandbox
		time.Sleep(time.Minute)
		n.mu.Lock()
		n.waking = 31 * time.Second
		n.mu.Unlock()
		n.die(id)
		if end := do(p, work("a")); end.err != nil {
			t.Error(end.err)
		}
	})
}

// A job that only a node out of reach could serve keeps nobody behind it from having room made.
func TestWhoWaitsForANodeOutOfReachStarvesNobody(t *testing.T) {
	big, small := vfs(1), vfs(1)
	big.MemoryMib, small.MemoryMib = 8192, 1000
	statuses := []*api.StatusReply{big, small}
	cfg := Config{LostAfter: 10 * time.Second}
	among(t, cfg, statuses, func(t *testing.T, p *Pool, nodes []*fakeNode) {
		nodes[0].setDeaf(true)
		time.Sleep(3 * heartbeat)
		ended := heedful(hold(t, p, webSocket("x", "socket")))
		large := work("large")
		large.Namespace, large.MemoryMiB, large.Wait = "y", 4000, 10*time.Minute
		go do(p, large)
		time.Sleep(10 * time.Second)
		begin := time.Now()
		little := work("little")
		little.Namespace = "z"
		end := do(p, little)
		if took := time.Since(begin); end.err != nil || took != time.Second+startTime+runTime {
			t.Errorf("it took %s: %v", took, end.err)
		}
		if len(ended) != 1 {
			t.Error("nobody was told to end")
		}
		nodes[0].setDeaf(false)
	})
}
