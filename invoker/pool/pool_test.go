package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// fakeNode starts in startTime and runs in runTime, of the bubble's clock. Its hooks may be
// replaced.
type fakeNode struct {
	api.UnimplementedNodeServer

	start func(ctx context.Context, in *api.StartRequest) (*api.StartReply, error)
	run   func(ctx context.Context, in *api.RunRequest) (*api.RunReply, error)

	mu      sync.Mutex
	status  *api.StatusReply
	looks   int
	ends    chan *api.Ended // what Wait tells; nil: the node is of a version without it
	deaf    bool            // it answers to Status and Stop only by an error
	live    map[string]bool
	paused  map[string]bool
	inits   int
	resumes int
	upAt    time.Time     // when its sandboxes' VFs are up; they are not paused before
	waking  time.Duration // how long it takes to resume
	starts  []*api.StartRequest
	stopped int
	most    int // of live at once
}

const startTime, initTime, runTime = 5 * time.Second, 500 * time.Millisecond, time.Second

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (n *fakeNode) Start(ctx context.Context, in *api.StartRequest) (*api.StartReply, error) {
	n.mu.Lock()
	n.starts = append(n.starts, in)
	n.live[in.Id] = true
	n.most = max(n.most, len(n.live))
	n.mu.Unlock()
	if n.start != nil {
		return n.start(ctx, in)
	}
	return &api.StartReply{Id: in.Id, InitStatus: 200}, sleep(ctx, startTime)
}

func (n *fakeNode) Init(ctx context.Context, in *api.InitRequest) (*api.StartReply, error) {
	n.mu.Lock()
	n.inits++
	live := n.live[in.Id]
	n.mu.Unlock()
	if !live {
		return nil, status.Errorf(codes.NotFound, "no sandbox %s", in.Id)
	}
	return &api.StartReply{Id: in.Id, InitStatus: 200}, sleep(ctx, initTime)
}

func (n *fakeNode) Pause(_ context.Context, in *api.PauseRequest) (*api.PauseReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Now().Before(n.upAt) {
		return nil, status.Errorf(codes.FailedPrecondition, "the VF of %s is coming up", in.Id)
	}
	n.paused[in.Id] = true
	return &api.PauseReply{}, nil
}

func (n *fakeNode) Resume(ctx context.Context, in *api.ResumeRequest) (*api.ResumeReply, error) {
	_ = sleep(ctx, n.waking)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resumes++
	if !n.live[in.Id] {
		return nil, status.Errorf(codes.Internal, "sandbox %s does not go on", in.Id)
	}
	delete(n.paused, in.Id)
	return &api.ResumeReply{}, nil
}

func (n *fakeNode) Run(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	n.mu.Lock()
	live, paused := n.live[in.Id], n.paused[in.Id]
	n.mu.Unlock()
	if !live {
		return nil, status.Errorf(codes.NotFound, "no sandbox %s", in.Id)
	}
	if paused {
		panic("a paused sandbox is to run")
	}
	if n.run != nil {
		return n.run(ctx, in)
	}
	return &api.RunReply{Status: 200}, sleep(ctx, runTime)
}

func (n *fakeNode) Stop(_ context.Context, in *api.StopRequest) (*api.StopReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deaf {
		return nil, status.Error(codes.Unavailable, "no route")
	}
	if n.live[in.Id] {
		n.stopped++
	}
	delete(n.live, in.Id)
	return &api.StopReply{}, nil
}

func (n *fakeNode) Status(context.Context, *api.StatusRequest) (*api.StatusReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	if n.deaf {
		return nil, status.Error(codes.Unavailable, "no route")
	}
	return n.status, nil
}

func (n *fakeNode) Wait(
	_ *api.WaitRequest, stream grpc.ServerStreamingServer[api.Ended],
) error {
	n.mu.Lock()
	ends := n.ends
	n.mu.Unlock()
	if ends == nil {
		return status.Error(codes.Unimplemented, "no such method")
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case end, open := <-ends:
			if !open {
				return status.Error(codes.Unavailable, "the connection broke")
			}
			if err := stream.Send(end); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// vfs is the status of a node with that many VFs in order and one that is not.
func vfs(inOrder int) *api.StatusReply {
	status := &api.StatusReply{MemoryMib: 4096, OverheadMib: 100}
	status.Vfs = append(status.Vfs, &api.VF{State: "quarantined"})
	for range inOrder {
		status.Vfs = append(status.Vfs, &api.VF{State: "idle"})
	}
	return status
}

func (n *fakeNode) become(status *api.StatusReply) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = status
}

// count reads what the fake has counted.
func (n *fakeNode) count() (live, stopped int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.live), n.stopped
}

func newFake(status *api.StatusReply) *fakeNode {
	return &fakeNode{live: map[string]bool{}, paused: map[string]bool{}, status: status}
}

// in runs a test with a pool on a fake node, on a clock of its own, and checks that closing the
// pool leaves the node empty.
func in(
	t *testing.T, cfg Config, status *api.StatusReply,
	test func(t *testing.T, p *Pool, n *fakeNode),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newFake(status)
		if cfg.KeepAlive == 0 {
			cfg.KeepAlive = time.Minute
		}
		if cfg.Wait == 0 {
			cfg.Wait = 30 * time.Second
		}
		cfg.Start = time.Minute
		p := New(cfg, api.Local(n))
		test(t, p, n)
		p.Close()
		p.Close()
		if live, _ := n.count(); live > 0 {
			t.Errorf("%d sandboxes left on the node", live)
		}
	})
}

// A job is a demand for a sandbox that runs something once, and is kept where that says 200.
type job struct {
	Demand
	spoils bool // it is not kept
}

var errInit = errors.New("it refused /init")

func work(group string) job {
	return job{Demand: Demand{
		Group: group, MemoryMiB: 100,
		Start: func() (*api.StartRequest, error) { return &api.StartRequest{Image: "sim"}, nil },
		Ready: func(reply *api.StartReply) error {
			if reply.InitStatus != 200 {
				return errInit
			}
			return nil
		},
	}}
}

type done struct {
	Placement
	run *api.RunReply
	err error
}

// do has a job done and waits for its end.
func do(p *Pool, j job) (end done) {
	over := make(chan struct{})
	p.Acquire(j.Demand, func(l *Lease, err error) {
		var reply *api.RunReply
		if err == nil {
			reply, err = l.Client().Run(l.Context(), &api.RunRequest{Id: l.Sandbox})
			if err != nil && l.Retry(err) {
				return
			}
			l.Release(err == nil && reply.Status == 200 && !j.spoils)
		}
		end = done{l.Placement, reply, err}
		close(over)
	})
	<-over
	return end
}

// atOnce runs jobs side by side and returns how they ended.
func atOnce(p *Pool, jobs ...job) []done {
	ends := make([]done, len(jobs))
	var all sync.WaitGroup
	for i, job := range jobs {
		all.Go(func() {
			ends[i] = do(p, job)
		})
	}
	all.Wait()
	return ends
}

func repeat(one job, n int) (jobs []job) {
	for range n {
		jobs = append(jobs, one)
	}
	return jobs
}

func TestJobsAtOnceStartSideBySide(t *testing.T) {
	in(t, Config{}, &api.StatusReply{}, func(t *testing.T, p *Pool, n *fakeNode) {
		begin := time.Now()
		for i, end := range atOnce(p, repeat(work("a"), 7)...) {
			if end.err != nil || !end.Cold || end.run == nil {
				t.Errorf("job %d: %+v", i, end)
			}
		}
		if took := time.Since(begin); took != startTime+runTime {
			t.Errorf("seven starts took %s, one takes %s", took, startTime+runTime)
		}
		if n.most != 7 {
			t.Errorf("%d sandboxes at once", n.most)
		}
	})
}

func TestWarmSandboxIsReusedUntilKeepAliveEnds(t *testing.T) {
	cfg := Config{KeepAlive: 10 * time.Second}
	in(t, cfg, &api.StatusReply{}, func(t *testing.T, p *Pool, n *fakeNode) {
		first := atOnce(p, work("a"))[0]
		time.Sleep(9 * time.Second)
		second := atOnce(p, work("a"))[0]
		if second.Cold || second.Sandbox != first.Sandbox || second.Start != nil {
			t.Errorf("second: %+v", second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, stopped := n.count(); stopped != 1 {
			t.Errorf("%d sandboxes stopped after the keep-alive", stopped)
		}
		if third := atOnce(p, work("a"))[0]; !third.Cold {
			t.Error("the third found a warm sandbox")
		}
	})
}

func TestTwiceAsManyAsFit(t *testing.T) {
	in(t, Config{}, vfs(7), func(t *testing.T, p *Pool, n *fakeNode) {
		cold := 0
		for i, end := range atOnce(p, repeat(work("a"), 14)...) {
			if end.err != nil {
				t.Errorf("job %d: %v", i, end.err)
			}
			if end.Cold {
				cold++
			}
		}
		if cold != 7 || n.most != 7 {
			t.Errorf("%d cold starts, %d sandboxes at once", cold, n.most)
		}
	})
}

func TestFullNodeRefusesWithTheReason(t *testing.T) {
	in(t, Config{Wait: 3 * time.Second}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		ends := atOnce(p, work("a"), work("a"))
		first, second := ends[0], ends[1]
		if first.err != nil {
			first, second = second, first
		}
		var refused *Refused
		const why = "no VF, 0 ahead; waited 3s"
		isRefused := errors.As(second.err, &refused) && strings.Contains(refused.Why, why)
		if first.err != nil || !isRefused {
			t.Errorf("got %v and %v", first.err, second.err)
		}
	})
}

// A job's own wait is the queue's; the node's is the pool's.
func TestAJobWaitsAsLongAsItSays(t *testing.T) {
	in(t, Config{Wait: 3 * time.Second}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		brief, patient := work("a"), work("b")
		brief.Wait, patient.Wait = time.Second, time.Hour
		brief.spoils, patient.spoils = true, true
		jobs := append(repeat(patient, 20), repeat(brief, 20)...)
		refusals := 0
		for i, end := range atOnce(p, jobs...) {
			var refused *Refused
			switch {
			case i < 20 && end.err != nil:
				t.Errorf("patient job %d: %v", i, end.err)
			case i >= 20 && errors.As(end.err, &refused):
				refusals++
			}
		}
		if refusals < 18 {
			t.Errorf("%d of 20 brief jobs were refused", refusals)
		}
		for _, start := range n.starts {
			if start.WaitMs > 3000 {
				t.Errorf("a start may wait %d ms on the node", start.WaitMs)
			}
		}
	})
}

func TestAnotherGroupEvictsTheIdle(t *testing.T) {
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		atOnce(p, work("a"))
		if end := atOnce(p, work("b"))[0]; end.err != nil || !end.Cold {
			t.Errorf("%+v", end)
		}
		synctest.Wait()
		if _, stopped := n.count(); stopped != 1 {
			t.Errorf("%d stopped", stopped)
		}
	})
}

func TestWhatIsLeftOfTheWaitGoesToTheNode(t *testing.T) {
	in(t, Config{Wait: 10 * time.Second}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		spoils := work("a")
		spoils.spoils = true
		atOnce(p, spoils, spoils)
		if len(n.starts) != 2 || n.starts[0].WaitMs != 10_000 || n.starts[1].WaitMs != 4_000 {
			t.Errorf("starts: %v", n.starts)
		}
	})
}

func TestFailuresEndTheSandbox(t *testing.T) {
	refusedInit := func(_ context.Context, in *api.StartRequest) (*api.StartReply, error) {
		return &api.StartReply{Id: in.Id, InitStatus: 502}, nil
	}
	full := func(context.Context, *api.StartRequest) (*api.StartReply, error) {
		return nil, status.Error(codes.ResourceExhausted, "no VF is idle")
	}
	crash := func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return &api.RunReply{Status: 400}, nil
	}
	lost := func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return nil, status.Error(codes.Internal, "the sandbox ended")
	}
	for name, c := range map[string]struct {
		start func(context.Context, *api.StartRequest) (*api.StartReply, error)
		run   func(context.Context, *api.RunRequest) (*api.RunReply, error)
		check func(done) bool
	}{
		"init": {refusedInit, nil, func(d done) bool {
			return d.err == errInit && d.Start.InitStatus == 502 && d.run == nil
		}},
		"full":  {full, nil, func(d done) bool { return isStart(d.err, codes.ResourceExhausted) }},
		"crash": {nil, crash, func(d done) bool { return d.err == nil && d.run.Status == 400 }},
		"lost":  {nil, lost, func(d done) bool { return status.Code(d.err) == codes.Internal }},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, Config{}, &api.StatusReply{}, func(t *testing.T, p *Pool, n *fakeNode) {
				n.start, n.run = c.start, c.run
				if end := atOnce(p, work("a"))[0]; !c.check(end) {
					t.Errorf("got %+v", end)
				}
				synctest.Wait()
				if live, _ := n.count(); live > 0 {
					t.Error("the sandbox was kept")
				}
			})
		})
	}
}

func isStart(err error, code codes.Code) bool {
	var start *StartError
	return errors.As(err, &start) && status.Code(start.Err) == code
}

func TestSandboxThatDiedIdleIsReplaced(t *testing.T) {
	in(t, Config{}, &api.StatusReply{}, func(t *testing.T, p *Pool, n *fakeNode) {
		atOnce(p, work("a"))
		n.mu.Lock()
		clear(n.live)
		n.mu.Unlock()
		if end := atOnce(p, work("a"))[0]; end.err != nil || !end.Cold {
			t.Errorf("%+v", end)
		}
	})
}

func TestRetireEndsTheIdleNowAndTheBusyLater(t *testing.T) {
	in(t, Config{}, &api.StatusReply{}, func(t *testing.T, p *Pool, n *fakeNode) {
		atOnce(p, work("a"), work("a"))
		busy := make(chan done)
		go func() { busy <- atOnce(p, work("a"))[0] }()
		synctest.Wait()
		p.Retire("a")
		synctest.Wait()
		if _, stopped := n.count(); stopped != 1 {
			t.Errorf("%d stopped at once, want the idle one", stopped)
		}
		if end := <-busy; end.err != nil || end.Cold {
			t.Errorf("the busy one: %+v", end)
		}
		synctest.Wait()
		if _, stopped := n.count(); stopped != 2 {
			t.Errorf("%d stopped in the end", stopped)
		}
	})
}

func TestCloseCancelsWhatIsUnderWay(t *testing.T) {
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		ends := make(chan []done)
		go func() { ends <- atOnce(p, work("a"), work("a")) }()
		synctest.Wait()
		if depth := p.Depth(); depth != 1 {
			t.Errorf("%d wait, want 1", depth)
		}
		begin := time.Now()
		p.Close()
		for _, end := range <-ends {
			if end.err == nil {
				t.Error("a job was answered by a closed pool")
			}
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("closing took %s", took)
		}
		err := do(p, work("a")).err
		if fmt.Sprint(err) != "no sandbox for it: the invoker shuts down" {
			t.Errorf("got %v", err)
		}
	})
}

func TestCapacityIsLearntAgain(t *testing.T) {
	in(t, Config{Wait: 20 * time.Second}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		time.Sleep(time.Second)
		n.become(vfs(2)) // a VF has healed
		begin := time.Now()
		for _, end := range atOnce(p, work("a"), work("b")) {
			if end.err != nil || !end.Cold {
				t.Errorf("%+v", end)
			}
		}
		if took := time.Since(begin); took != startTime+runTime {
			t.Errorf("the second waited for the first: %s", took)
		}

		n.become(vfs(0)) // both are quarantined, and the pool does not know
		n.start = func(context.Context, *api.StartRequest) (*api.StartReply, error) {
			return nil, status.Error(codes.ResourceExhausted, "no VF is in order")
		}
		time.Sleep(2 * time.Second)
		atOnce(p, work("c"))
		synctest.Wait()
		var refused *Refused
		end := atOnce(p, work("c"))[0]
		if !errors.As(end.err, &refused) || !strings.Contains(refused.Why, "no VF") {
			t.Errorf("the pool still believes in its VFs: %+v", end)
		}
	})
}
