package bare_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// Starts of processes that hold real VFs meet stops, drains and losses of their VFs. None is stuck,
// and no process, cgroup, directory, memory or lease is left.
func TestRacesOfEndsOfProcesses(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, Env: []string{raceSeed, raceTime}},
		func(t *testing.T) {
			const rounds, together = 50, 6 // of 7 VFs; fewer rounds on a slow host
			within := time.Minute
			if longer, err := time.ParseDuration(os.Getenv(raceTime)); err == nil {
				within = longer
			}
			seed := rand.Uint64()
			if _, err := fmt.Sscan(os.Getenv(raceSeed), &seed); err != nil {
				t.Logf("%s=%d repeats this", raceSeed, seed)
			}
			random := rand.New(rand.NewPCG(seed, 0))
			a, pool := node(t, t.Context())
			ctx := t.Context()
			var took time.Duration
			for _, id := range []string{"first", "alone"} { // the first waits for the link
				begin := time.Now()
				if _, err := a.Start(ctx, &api.StartRequest{Id: id, MemoryMib: 64,
					WaitMs: 60_000}); err != nil {
					t.Fatal(err)
				}
				took = time.Since(begin)
			}
			t.Logf("a start alone takes %v", took)
			started, asked := 0, 0
			for round, begin := 0, time.Now(); round < rounds &&
				time.Since(begin) < within; round++ {
				asked += together
				// A round that needs longer is stuck.
				ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
				defer cancel()
				var all sync.WaitGroup
				replies := make([]error, together)
				for i := range together {
					id := fmt.Sprintf("x%d-%d", round, i)
					all.Go(func() {
						_, replies[i] = a.Start(ctx, &api.StartRequest{Id: id, MemoryMib: 64,
							WaitMs: 60_000})
					})
					end, after := random.IntN(6),
						time.Duration(random.Int64N(int64(min(3*took/2, time.Second))))
					all.Go(func() {
						time.Sleep(after) // a different moment of the start each time
						if err := race(ctx, a, pool, id, end); err != nil {
							t.Errorf("round %d: %v", round, err)
						}
					})
				}
				all.Wait()
				for _, err := range replies {
					if code := status.Code(err); err == nil {
						started++
					} else if code != codes.Canceled && code != codes.Unavailable {
						t.Errorf("a start: %v", err)
					}
				}
				if _, err := a.Drain(ctx, &api.DrainRequest{Cancel: true}); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if _, err := a.Drain(ctx, &api.DrainRequest{Undo: true}); err != nil {
					t.Fatal(err)
				}
			}
			now, err := a.Status(ctx, &api.StatusRequest{})
			if err != nil || len(now.Sandboxes)+len(now.Leftovers) != 0 ||
				now.MemoryReservedMib != 0 {
				t.Errorf("left over: %v, %v", now, err)
			}
			for _, v := range pool.Snapshot() {
				if v.State == vf.Leased {
					t.Errorf("left over: %+v", v)
				}
			}
			if asked >= 100 && (started == 0 || started == asked) {
				t.Errorf("%d of %d starts came through: the ends did not meet them", started, asked)
			}
			t.Logf("%d of %d starts came through", started, asked)
		})
}

// raceTime is the variable that sets how long the races go on; without it they take a minute.
const (
	raceSeed = "FASTIOV_TEST_RACE_SEED"
	raceTime = "FASTIOV_TEST_RACE_TIME"
)

// race ends a sandbox in one of three ways, or lets it be.
func race(ctx context.Context, a *agent.Agent, pool *vf.Pool, id string, how int) (err error) {
	switch how {
	case 0:
		_, err = a.Stop(ctx, &api.StopRequest{Id: id})
	case 1:
		_, err = a.Drain(ctx, &api.DrainRequest{Cancel: true})
	case 2:
		for _, v := range pool.Snapshot() {
			if v.State == vf.Leased && v.Owner.Name == id {
				pool.Fault(v.BDF, "made up")
			}
		}
	}
	return err
}

// node is an agent of bare sandboxes over the VFs of this host.
func node(t *testing.T, ctx context.Context) (*agent.Agent, *vf.Pool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d, err := bare.Open(bare.Config{Command: []string{self, "bare-vmm"}, Rooms: 7, BestEffort: true,
		Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := vf.Config{PFs: []string{"igb"}, Run: dir, Log: log}
	pool, err := vf.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		if err := vf.Undo(cfg); err != nil {
			t.Error(err)
		}
	})
	starter := &startup.Starter{
		RunDir: dir, Driver: d, OverheadMiB: bare.OverheadMiB, Images: none{}, Log: log,
		Admission: startup.NewAdmission(4096, netvf.Path{Pool: pool}),
		Network: startup.Network{
			Subnet: netip.MustParsePrefix("10.0.2.0/24"), First: netip.MustParseAddr("10.0.2.100"),
			Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"),
		},
		Deadlines: startup.Deadlines{Wire: time.Minute, Boot: 2 * time.Minute},
		Reports:   &startup.Reports{Dir: t.TempDir(), Keep: 1},
	}
	a := agent.New(agent.Config{
		Version: "test", Driver: "bare", Starter: starter, VFs: pool, Log: log,
		Metrics: agent.NewMetrics(prometheus.NewRegistry()),
	})
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	go a.Follow(ctx)
	return a, pool
}

// none has the images of a driver that boots nothing.
type none struct{}

func (none) Root(context.Context, string, string) (startup.Root, error) {
	return startup.Root{}, nil
}
func (none) Hold(context.Context, string) (func(), error) { return nil, nil }
