package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A new agent ends sandboxes that it cannot adopt, and no others. It keeps what living holders of
// other kinds have, and returns what dead ones had, also of those that die later.
func TestOthersKeepTheirVFs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, v := newAgent(t)
		netns := filepath.Join(t.TempDir(), "netns")
		if err := os.WriteFile(netns, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		device, err := vf.Process(vf.Device, "dpdk", os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		bench := device
		bench.Kind, bench.StartTicks = vf.Bench, device.StartTicks-1
		v.found = []vf.Lease{
			{BDF: "sandbox", Owner: vf.Owner{Kind: vf.Sandbox, Name: "x"}},
			{BDF: "unreadable"},
			{BDF: "pod", Owner: vf.Owner{Kind: vf.Pod, Name: "p", Netns: netns}},
			{BDF: "device", Owner: device},
			{BDF: "dead bench", Owner: bench},
		}
		keep := func(from, to int) { // of what was found
			v.mu.Lock()
			defer v.mu.Unlock()
			v.found = v.found[from:to]
		}
		returned := func(want ...string) {
			t.Helper()
			synctest.Wait()
			v.mu.Lock()
			defer v.mu.Unlock()
			for _, bdf := range want {
				if len(v.returned) == 0 || v.returned[0].BDF != bdf {
					t.Fatalf("returned %v, want %v", v.returned, want)
				}
				v.returned = v.returned[1:]
			}
			if len(v.returned) > 0 {
				t.Errorf("returned besides: %v", v.returned)
			}
		}
		if adopted, ended := a.Adopt(t.Context())(); adopted != 0 || ended != 1 {
			t.Errorf("%d adopted, %d ended", adopted, ended)
		}
		returned("sandbox", "unreadable")
		keep(2, 5)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go a.Follow(ctx)
		returned("dead bench")
		keep(0, 2)
		if err := os.Remove(netns); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reclaimEvery)
		returned("pod")
	})
}

// The agent acts upon the news of the pool: a sandbox that lost its VF ends, another holder's loss
// is not the agent's concern, waiting starts get the VFs that came back, and work on VFs is
// counted.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, v := newAgent(t)
		v.news = make(chan []vf.News)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go a.Follow(ctx)
		resetting := func(lease *vf.Lease) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.lease = lease
		}
		resetting(&vf.Lease{})
		began := make(chan error)
		go func() {
			req := &api.StartRequest{Id: "x", MemoryMib: 64, WaitMs: 60_000}
			_, err := a.Start(t.Context(), req)
			began <- err
		}()
		synctest.Wait()
		resetting(nil)
		v.news <- []vf.News{{Settled: []vf.Settled{{From: vf.Resetting}}}}
		if err := <-began; err != nil {
			t.Error(err)
		}
		lost := func(kind vf.Kind) vf.News {
			owner := vf.Owner{Kind: kind, Name: "x"}
			return vf.News{
				Status:  vf.Status{Owner: owner, Lost: "an error"},
				Settled: []vf.Settled{{From: vf.Resetting, Took: time.Second}},
			}
		}
		v.news <- []vf.News{lost(vf.Pod)}
		synctest.Wait()
		if s := statusOf(t, a, "x"); s.GetState() != "ready" {
			t.Errorf("a pod of its name lost a VF: %v", s)
		}
		v.news <- []vf.News{lost(vf.Sandbox)}
		v.news <- []vf.News{lost(vf.Sandbox)} // as long as it is not returned
		synctest.Wait()
		if s := statusOf(t, a, "x"); s != nil {
			t.Errorf("it has lost its VF: %v", s)
		}
		if n := resets(t, a); n != 4 {
			t.Errorf("%d resets are counted, want 4", n)
		}
	})
}

// resets returns how many resets have been counted.
func resets(t *testing.T, a *Agent) uint64 {
	t.Helper()
	metric := &dto.Metric{}
	series := a.Metrics.resets.WithLabelValues("reset", "ok").(prometheus.Metric)
	if err := series.Write(metric); err != nil {
		t.Fatal(err)
	}
	return metric.GetHistogram().GetSampleCount()
}
