package pool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// among runs a test with a pool on several fake nodes.
func among(
	t *testing.T, cfg Config, statuses []*api.StatusReply,
	test func(t *testing.T, p *Pool, nodes []*fakeNode),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var nodes []*fakeNode
		for i, status := range statuses {
			n := newFake(status)
			nodes = append(nodes, n)
			cfg.Nodes = append(cfg.Nodes, Named{string(rune('A' + i)), api.Local(n)})
		}
		if cfg.KeepAlive == 0 {
			cfg.KeepAlive = time.Hour
		}
		cfg.Wait, cfg.Start = 30*time.Second, time.Minute
		p := New(cfg, nil)
		test(t, p, nodes)
		p.Close()
		for i, n := range nodes {
			if live, _ := n.count(); live > 0 && !n.deaf {
				t.Errorf("%d sandboxes left on node %d", live, i)
			}
		}
	})
}

// having returns nodes with so many VFs in order.
func having(inOrder ...int) (statuses []*api.StatusReply) {
	for _, n := range inOrder {
		statuses = append(statuses, vfs(n))
	}
	return statuses
}

func (n *fakeNode) setDeaf(deaf bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = deaf
}

func TestABurstGoesToAllNodes(t *testing.T) {
	among(t, Config{}, having(4, 4), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		begin := time.Now()
		on := map[string]int{}
		for _, end := range atOnce(p, repeat(work("a"), 8)...) {
			if end.err != nil {
				t.Error(end.err)
			}
			on[end.Node]++
		}
		if took := time.Since(begin); took != startTime+runTime || on["A"] != 4 || on["B"] != 4 {
			t.Errorf("%s, %v", took, on)
		}
	})
}

func TestANodeOutOfReachLosesItsSandboxesInTheEnd(t *testing.T) {
	cfg := Config{LostAfter: 20 * time.Second}
	among(t, cfg, having(1, 2), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		for _, end := range atOnce(p, repeat(work("a"), 3)...) {
			if end.err != nil {
				t.Fatal(end.err)
			}
		}
		nodes[1].setDeaf(true)
		time.Sleep(2 * heartbeat)
		if first := atOnce(p, work("a"))[0]; first.err != nil || first.Node != "A" || first.Cold {
			t.Errorf("%+v", first)
		}
		shot := p.Snapshot()
		if shot.Nodes[1].Boxes != 2 || !strings.Contains(shot.Nodes[1].State, "B: ") {
			t.Errorf("%+v", shot)
		}
		time.Sleep(20 * time.Second)
		if shot := p.Snapshot(); shot.Nodes[1].Boxes != 0 || shot.Nodes[1].FreeMore != 2 {
			t.Errorf("%+v", shot)
		}
		nodes[1].setDeaf(false)
		time.Sleep(2 * heartbeat)
		synctest.Wait()
		if live, _ := nodes[1].count(); live != 0 {
			t.Errorf("%d sandboxes that were given up live on", live)
		}
	})
}

// A node that does not answer one look, under load perhaps, keeps its sandboxes and gets calls.
func TestANodeThatIsSilentOnceStays(t *testing.T) {
	among(t, Config{}, having(1), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		n := nodes[0]
		down := func() string { return p.Snapshot().Nodes[0].State }
		looked := func(deaf bool) {
			n.setDeaf(deaf)
			p.look(p.state.nodes[0])
		}
		for range 3 { // not one after the other
			if looked(true); down() != "up" {
				t.Errorf("silent once, it is %s", down())
			}
			looked(false)
		}
		looked(true)
		if looked(true); down() == "up" {
			t.Error("silent twice, it is up")
		}
		if looked(false); down() != "up" {
			t.Errorf("it answers, and is %s", down())
		}
	})
}

// A job whose node cannot be reached for the start starts elsewhere; one that runs there when the
// node is given up fails, once.
func TestWhatANodeThatGoesAwayTakesWithIt(t *testing.T) {
	cfg := Config{LostAfter: 10 * time.Second}
	among(t, cfg, having(3, 2), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		nodes[0].start = func(context.Context, *api.StartRequest) (*api.StartReply, error) {
			return nil, status.Error(codes.Unavailable, "connection refused")
		}
		if end := atOnce(p, work("a"))[0]; end.err != nil || end.Node != "B" || !end.Cold {
			t.Errorf("%+v", end)
		}
		nodes[0].setDeaf(true)
		nodes[1].run = func(ctx context.Context, _ *api.RunRequest) (*api.RunReply, error) {
			nodes[1].setDeaf(true)
			return nil, sleep(ctx, time.Hour)
		}
		begin := time.Now()
		end := atOnce(p, work("a"))[0]
		if status.Code(end.err) != codes.Canceled || time.Since(begin) > 20*time.Second {
			t.Errorf("%v after %s", end.err, time.Since(begin))
		}
	})
}

// An invoker that is there before its node has its jobs wait.
func TestANodeThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFake(vfs(1))
		n.deaf = true
		cfg := Config{KeepAlive: time.Hour, Wait: 10 * time.Second, Start: time.Minute}
		p := New(cfg, api.Local(n))
		defer p.Close()
		var refused *Refused
		const why = "no node in reach: local: no route, 0 ahead"
		end := atOnce(p, work("a"))[0]
		if !errors.As(end.err, &refused) || !strings.HasPrefix(refused.Why, why) {
			t.Errorf("%+v", end)
		}
		go func() {
			time.Sleep(5 * time.Second)
			n.setDeaf(false)
		}()
		if end := atOnce(p, work("a"))[0]; end.err != nil {
			t.Error(end.err)
		}
	})
}

func TestADrainingNodeEmpties(t *testing.T) {
	among(t, Config{}, having(1, 1), func(t *testing.T, p *Pool, nodes []*fakeNode) {
		atOnce(p, work("a"), work("a"))
		draining := vfs(1)
		draining.Draining = true
		nodes[0].become(draining)
		time.Sleep(2 * heartbeat)
		synctest.Wait()
		if live, _ := nodes[0].count(); live != 0 {
			t.Errorf("%d idle sandboxes on a draining node", live)
		}
		if end := atOnce(p, work("a"))[0]; end.err != nil || end.Node != "B" || end.Cold {
			t.Errorf("%+v", end)
		}
	})
}

func TestJobsShareASandbox(t *testing.T) {
	in(t, Config{}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		shared := work("a")
		shared.Concurrency = 4
		begin := time.Now()
		for _, end := range atOnce(p, repeat(shared, 8)...) {
			if end.err != nil || end.Cold != (end.How == Cold) {
				t.Errorf("%+v", end)
			}
		}
		if took := time.Since(begin); took != startTime+runTime || len(n.starts) != 2 {
			t.Errorf("%d starts, %s", len(n.starts), took)
		}
	})
}

// Who waited for a sandbox whose function is broken learns the same; whose start failed otherwise
// is given another.
func TestJobsThatWaitForAStartThatFails(t *testing.T) {
	shared := work("a")
	shared.Concurrency = 3
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		n.start = func(ctx context.Context, in *api.StartRequest) (*api.StartReply, error) {
			return &api.StartReply{Id: in.Id, InitStatus: 502}, sleep(ctx, startTime)
		}
		for _, end := range atOnce(p, repeat(shared, 3)...) {
			if end.err != errInit || end.run != nil || end.Start.GetInitStatus() != 502 {
				t.Errorf("%+v", end)
			}
		}
	})
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		n.start = func(ctx context.Context, in *api.StartRequest) (*api.StartReply, error) {
			if err := sleep(ctx, startTime); err != nil || len(n.starts) == 1 {
				return nil, status.Error(codes.Internal, "the guest panicked")
			}
			return &api.StartReply{Id: in.Id, InitStatus: 200}, nil
		}
		failed := 0
		for _, end := range atOnce(p, repeat(shared, 3)...) {
			if end.err != nil {
				failed++
			}
		}
		if failed != 1 || len(n.starts) != 2 {
			t.Errorf("%d of 3 failed, %d starts", failed, len(n.starts))
		}
	})
}

func TestAStemCellServes(t *testing.T) {
	cell := StemCell{Image: "sim", MemoryMiB: 100, Count: 1, Env: map[string]string{"K": "v"}}
	cfg := Config{StemCells: []StemCell{cell}}
	in(t, cfg, vfs(3), func(t *testing.T, p *Pool, n *fakeNode) {
		time.Sleep(startTime)
		synctest.Wait()
		if len(n.starts) != 1 {
			t.Fatalf("%v", n.starts)
		}
		asked := n.starts[0]
		ours := asked.Image == "sim" && asked.MemoryMib == 100 && asked.Env["K"] == "v"
		if !ours || asked.Init != nil {
			t.Fatalf("%v", asked)
		}
		job := work("a")
		job.Image, job.Stem = "sim", true
		begin := time.Now()
		end := atOnce(p, job)[0]
		took := time.Since(begin)
		prewarmed := end.err == nil && end.How == Prewarm && end.Cold && end.Start != nil
		if !prewarmed || took != initTime+runTime {
			t.Errorf("%+v in %s", end, took)
		}
		time.Sleep(startTime)
		shot := p.Snapshot()
		if shot.Boxes["stem"] != 1 || shot.Boxes["idle"] != 1 {
			t.Errorf("%+v", shot)
		}
		if shot.Decisions[Prewarm] != 1 || shot.Decisions[Stem] != 2 {
			t.Errorf("%+v", shot)
		}
		if again := atOnce(p, job)[0]; again.How != Warm || again.Sandbox != end.Sandbox {
			t.Errorf("%+v", again)
		}
	})
}

func TestAPausedSandboxIsResumedOrReplaced(t *testing.T) {
	in(t, Config{PauseAfter: 10 * time.Second}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		first := atOnce(p, work("a"))[0]
		time.Sleep(11 * time.Second)
		if shot := p.Snapshot(); shot.Boxes["paused"] != 1 {
			t.Errorf("%+v", shot)
		}
		second := atOnce(p, work("a"))[0]
		if second.err != nil || second.Sandbox != first.Sandbox || n.resumes != 1 {
			t.Errorf("%+v after %d resumes", second, n.resumes)
		}
		time.Sleep(11 * time.Second)
		n.mu.Lock()
		clear(n.live) // it died while it slept
		n.mu.Unlock()
		if third := atOnce(p, work("a"))[0]; third.err != nil || !third.Cold {
			t.Errorf("%+v", third)
		}
	})
}

// A sandbox whose VF is still coming up is paused when it is up. A call that comes before waits for
// neither.
func TestASandboxIsPausedWhenItsVFIsUp(t *testing.T) {
	in(t, Config{PauseAfter: 10 * time.Second}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		isPaused := func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.paused) > 0
		}
		n.upAt = time.Now().Add(time.Minute)
		atOnce(p, work("a"))
		time.Sleep(15 * time.Second)
		begin := time.Now()
		if end := atOnce(p, work("a"))[0]; end.How != Warm || time.Since(begin) != runTime {
			t.Errorf("%+v after %s", end, time.Since(begin))
		}
		if time.Sleep(time.Until(n.upAt) - time.Millisecond); isPaused() {
			t.Error("paused before the VF is up")
		}
		if time.Sleep(2 * hurry); !isPaused() {
			t.Error("the VF is up, and it is not paused")
		}
		if end := atOnce(p, work("a"))[0]; end.err != nil || end.How != Warm || n.resumes != 2 {
			t.Errorf("%+v after %d resumes", end, n.resumes)
		}
	})
}

func TestJobsThatShareAPausedSandboxAwaitItsWaking(t *testing.T) {
	in(t, Config{PauseAfter: 10 * time.Second}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		shared := work("a")
		shared.Concurrency = 4
		atOnce(p, shared)
		time.Sleep(11 * time.Second)
		n.waking = 3 * time.Second
		begin := time.Now()
		for _, end := range atOnce(p, repeat(shared, 4)...) {
			if end.err != nil || end.How != Warm {
				t.Errorf("%+v", end)
			}
		}
		if took := time.Since(begin); took != n.waking+runTime || n.resumes != 1 {
			t.Errorf("%d resumes, %s", n.resumes, took)
		}
	})
}

// What a node holds when a pool meets it is a former pool's, which nobody would ever end; what it
// holds later is not.
func TestStrangersAreEnded(t *testing.T) {
	status := vfs(2)
	status.Sandboxes = []*api.Sandbox{{Id: "old"}}
	synctest.Test(t, func(t *testing.T) {
		n := newFake(status)
		n.live["old"] = true
		cfg := Config{KeepAlive: time.Minute, Wait: time.Second, Start: time.Minute}
		p := New(cfg, api.Local(n))
		synctest.Wait()
		if live, stopped := n.count(); live != 0 || stopped != 1 {
			t.Errorf("%d live, %d stopped", live, stopped)
		}
		n.mu.Lock()
		n.live["old"] = true
		n.mu.Unlock()
		time.Sleep(3 * heartbeat)
		if live, _ := n.count(); live != 1 {
			t.Error("ended by who knew the node")
		}
		p.Close()
	})
}

// A run is sent once, unless the runtime cannot have seen it.
func TestARunIsNotRepeated(t *testing.T) {
	for code, runs := range map[codes.Code]int{
		codes.Internal: 1, codes.Unavailable: 1, codes.DeadlineExceeded: 1, codes.Aborted: 2,
	} {
		in(t, Config{}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
			atOnce(p, work("a"))
			sent := 0
			n.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
				if sent++; sent == 1 {
					return nil, status.Error(code, "broken")
				}
				return &api.RunReply{Status: 200}, nil
			}
			if end := atOnce(p, work("a"))[0]; sent != runs || (end.err == nil) != (runs == 2) {
				t.Errorf("%s: sent %d times, %v", code, sent, end.err)
			}
		})
	}
}

func TestTheReasonIsTold(t *testing.T) {
	in(t, Config{Queue: 2}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		ends := make(chan []done)
		go func() { ends <- atOnce(p, repeat(work("a"), 3)...) }()
		synctest.Wait()
		shot := p.Snapshot()
		if shot.Queue[NoVF] != 2 || shot.Boxes["starting"] != 1 || shot.Decisions[Cold] != 1 {
			t.Errorf("%+v", shot)
		}
		var refused *Refused
		if end := atOnce(p, work("b"))[0]; !errors.As(end.err, &refused) || !refused.TooMany {
			t.Errorf("%+v", end)
		}
		<-ends
	})
}
