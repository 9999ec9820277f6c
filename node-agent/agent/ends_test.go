package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A caller that ends a sandbox in the last moment of its start does end it: the start fails, and
// nothing is left over.
func TestAnEndMeetsAStartThatFinishes(t *testing.T) {
	for name, end := range map[string]func(context.Context, *Agent, *vfs){
		"stop": func(ctx context.Context, a *Agent, _ *vfs) {
			a.Stop(ctx, &api.StopRequest{Id: "x"})
		},
		"drain": func(ctx context.Context, a *Agent, _ *vfs) {
			a.Drain(ctx, &api.DrainRequest{Cancel: true})
		},
		"lost": func(_ context.Context, a *Agent, v *vfs) { lose(a, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, d, v := newAgent(t)
				var ending sync.WaitGroup
				d.initializing = func() {
					ending.Go(func() { end(t.Context(), a, v) })
					synctest.Wait()
				}
				if _, err := start(t, a, "x"); status.Code(err) != codes.Canceled {
					t.Errorf("the start: %v", err)
				}
				ending.Wait()
				synctest.Wait()
				now, _ := a.Status(t.Context(), &api.StatusRequest{})
				if len(now.Sandboxes) != 0 || now.MemoryReservedMib != 0 || len(v.returned) != 1 {
					t.Errorf("left over: %v; returned: %v", now, v.returned)
				}
			})
		})
	}
}

// A Stop whose caller goes does not wait for a sandbox that does not end.
func TestAStopEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, _ := newAgent(t)
		d.hold = make(chan struct{})
		let := make(chan struct{})
		d.initializing = func() { <-let }
		var starting sync.WaitGroup
		starting.Go(func() { start(t, a, "x") })
		synctest.Wait()
		close(d.hold)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Stop(ctx, &api.StopRequest{Id: "x"})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
		close(let)
		starting.Wait()
	})
}

// A drain that ends all sandboxes closes each of them once, however many end before it.
func TestADrainEndsEachOnce(t *testing.T) {
	a, d, _ := newAgent(t)
	a.Starter.Admission = startup.NewAdmission(10_000, nil)
	const n = 50
	for i := range n {
		if _, err := start(t, a, fmt.Sprint("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		t.Fatal(err)
	}
	for id, b := range d.boxes {
		if closes := b.closes.Load(); closes > 2 { // the drain's, and that of its release
			t.Errorf("%s was closed %d times", id, closes)
		}
	}
}

// However starts, stops, drains and losses of VFs meet: none is stuck, and nothing is left over.
func TestRacesOfEnds(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 1000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a, _, v := newAgent(t)
	a.Starter.Driver = sim.New(sim.Config{Stages: sim.Table1(0)})
	for round := range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		id := fmt.Sprint("x", round)
		ends := []func() error{
			func() error { _, err := a.Stop(ctx, &api.StopRequest{Id: id}); return err },
			func() error { _, err := a.Drain(ctx, &api.DrainRequest{Cancel: true}); return err },
			func() error { lose(a, id); return nil },
		}
		var all sync.WaitGroup
		all.Go(func() { start(t, a, id) })
		for range 1 + random.IntN(3) {
			end := ends[random.IntN(len(ends))]
			yields := random.IntN(40)
			all.Go(func() {
				for range yields {
					time.Sleep(0)
				}
				if err := end(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, stopped := a.Stop(ctx, &api.StopRequest{Id: id})
		_, undone := a.Drain(ctx, &api.DrainRequest{Undo: true})
		if stopped != nil || undone != nil {
			t.Fatalf("round %d: %v, %v", round, stopped, undone)
		}
		cancel()
	}
	now, _ := a.Status(t.Context(), &api.StatusRequest{})
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(now.Sandboxes) != 0 || now.MemoryReservedMib != 0 || v.lease != nil {
		t.Errorf("left over: %v, %v", now, v.lease)
	}
}

func recordsOf(t *testing.T, a *Agent, ids ...string) {
	t.Helper()
	for _, id := range ids {
		recordOf(t, a, id, "")
	}
}

// recordOf writes the record of a sandbox that has the VF at bdf; none where that is empty.
func recordOf(t *testing.T, a *Agent, id, bdf string) {
	t.Helper()
	spec := sandbox.Spec{ID: id, Dir: a.Starter.Dir(id), MemoryMiB: 128}
	if bdf != "" {
		spec.NIC = &sandbox.NIC{PCI: &sandbox.PCI{BDF: bdf}}
	}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := startup.WriteRecord(sandbox.Record{Spec: spec, PID: 1}); err != nil {
		t.Fatal(err)
	}
}

// A sandbox that says nothing delays the others by headStart alone, and is ended with the reason
// after its time.
func TestASilentSandboxDelaysNoAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, _ := newAgent(t)
		var log bytes.Buffer
		a.Log = slog.New(slog.NewTextHandler(&log, nil))
		recordsOf(t, a, "mute", "silent", "well")
		d.adopts["well"] = true
		begin := time.Now()
		d.adopting = func(ctx context.Context, id string) {
			if id != "well" {
				<-ctx.Done()
			} else if waited := time.Since(begin); waited > 2*headStart {
				t.Errorf("the one that answers is adopted after %v", waited)
			}
		}
		adopted, ended := a.Adopt(t.Context())()
		if adopted != 1 || ended != 2 || time.Since(begin) > adoptWithin+2*headStart {
			t.Errorf("%d adopted, %d ended after %v", adopted, ended, time.Since(begin))
		}
		if n := strings.Count(log.String(), "it has not answered within 15s"); n != 2 {
			t.Errorf("the log says %s", log.String())
		}
		_, _ = a.Stop(t.Context(), &api.StopRequest{Id: "well"})
	})
}

// A VF that is lost while its sandbox is adopted ends that sandbox.
func TestALossDuringAdoptionIsNoticed(t *testing.T) {
	a, d, v := newAgent(t)
	recordsOf(t, a, "x")
	d.adopts["x"] = true
	d.adopting = func(_ context.Context, id string) {
		lose(a, id)
	}
	a.VFs = v
	a.Adopt(t.Context())()
	select {
	case <-d.boxes["x"].Done():
	case <-time.After(10 * time.Second):
		t.Error("it lives on without its VF")
	}
	_, _ = a.Stop(t.Context(), &api.StopRequest{Id: "x"})
}
