package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// ending runs a test with a pool that has one idle sandbox on a node which tells ends.
func ending(t *testing.T, test func(t *testing.T, p *Pool, n *fakeNode, id string)) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(vfs(2))
		n.ends = make(chan *api.Ended)
		cfg := Config{KeepAlive: time.Hour, Wait: 30 * time.Second, Start: time.Minute}
		p := New(cfg, api.Local(n))
		first := atOnce(p, work("a"))[0]
		if first.err != nil {
			t.Fatal(first.err)
		}
		test(t, p, n, first.Sandbox)
		p.Close()
	})
}

func (n *fakeNode) die(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.live, id)
}

// An idle sandbox that dies is gone when its node says so: the next call is sent to no dead one.
func TestAnEndIsLearntAsItHappens(t *testing.T) {
	ending(t, func(t *testing.T, p *Pool, n *fakeNode, id string) {
		n.ends <- &api.Ended{Id: "nobody's"}
		synctest.Wait()
		if shot := p.Snapshot(); shot.Boxes["idle"] != 1 {
			t.Errorf("%+v", shot)
		}
		n.die(id)
		n.ends <- &api.Ended{Id: id, Failed: true}
		synctest.Wait()
		if shot := p.Snapshot(); shot.Boxes["idle"] != 0 || shot.Nodes[0].FreeMore != 2 {
			t.Errorf("%+v", shot)
		}
		begin := time.Now()
		again := atOnce(p, work("a"))[0]
		if again.err != nil || !again.Cold || time.Since(begin) != startTime+runTime {
			t.Errorf("%+v after %v", again, time.Since(begin))
		}
	})
}

// What ended while nobody listened is found when the node is back, and nothing else is lost.
func TestEndsThatWereNotHeard(t *testing.T) {
	ending(t, func(t *testing.T, p *Pool, n *fakeNode, id string) {
		shared := atOnce(p, work("a"), work("a"))
		lives := shared[0].Sandbox
		if lives == id {
			lives = shared[1].Sandbox
		}
		n.mu.Lock()
		broken := n.ends
		n.ends = make(chan *api.Ended)
		left := vfs(2)
		left.Sandboxes = []*api.Sandbox{{Id: lives}}
		n.status = left
		n.mu.Unlock()
		n.die(id)
		close(broken)
		time.Sleep(2 * hurry)
		synctest.Wait()
		if shot := p.Snapshot(); shot.Boxes["idle"] != 1 {
			t.Errorf("%+v", shot)
		}
		if next := atOnce(p, work("a"))[0]; next.err != nil || next.Sandbox != lives {
			t.Errorf("%+v, want it in %s", next, lives)
		}
	})
}

// The end of a sandbox that starts, or runs something, is told by those calls; its room is free.
func TestEndsOfBusySandboxes(t *testing.T) {
	ending(t, func(t *testing.T, p *Pool, n *fakeNode, id string) {
		ends := make(chan []done)
		go func() { ends <- atOnce(p, work("a"), work("b")) }()
		time.Sleep(runTime / 2)
		n.mu.Lock()
		starting := n.starts[len(n.starts)-1].Id
		n.mu.Unlock()
		n.ends <- &api.Ended{Id: starting}
		n.ends <- &api.Ended{Id: id}
		synctest.Wait()
		if shot := p.Snapshot(); shot.Boxes["running"] != 0 || shot.Boxes["starting"] != 1 {
			t.Errorf("%+v", shot)
		}
		for _, end := range <-ends {
			if end.err != nil {
				t.Error(end.err)
			}
		}
		n.die(id)
	})
}
