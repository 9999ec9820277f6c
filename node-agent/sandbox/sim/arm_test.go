package sim

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// lasts returns how long n starts at once take on average if nothing but Alone makes them wait.
func lasts(steps []Step, n int) (sum time.Duration) {
	for _, s := range steps {
		if s.Alone {
			s.Takes = s.Takes * time.Duration(n+1) / 2
		}
		sum += s.Takes
	}
	return sum
}

func TestThePapersStockStartTakesWhatThePaperSays(t *testing.T) {
	stock, err := arm.Parse("paper-2024,s=0")
	if err != nil {
		t.Fatal(err)
	}
	const total = 16200 * time.Millisecond
	if got := lasts(Of(stock, 512, total), 200); (got - total).Abs() > time.Millisecond {
		t.Errorf("200 at once take %v on average, not %v", got, total)
	}
	if got := lasts(Of(stock, 512, total), 10); got > total*6/10 {
		t.Errorf("10 at once wait as long as 200: %v", got)
	}
}

func TestEachAxisTakesItsStage(t *testing.T) {
	stage := func(text string, memory int, of timeline.Stage) (takes time.Duration) {
		t.Helper()
		a, err := arm.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range Of(a, memory, 10*time.Second) {
			if s.Stage == of {
				takes += s.Takes
			}
		}
		return takes
	}
	whole := stage("none", 512, timeline.DMARAM)
	for _, c := range []struct {
		arm   string
		of    timeline.Stage
		mib   int
		least time.Duration
		most  time.Duration
	}{
		{"none", timeline.DMARAM, 256, whole / 2, whole / 2},
		{"d=pagecache", timeline.DMARAM, 512, 1, whole * 8 / 100},
		{"pre50", timeline.DMARAM, 512, whole * 53 / 100, whole * 54 / 100},
		{"pre100", timeline.DMARAM, 512, 1, whole * 8 / 100},
		{"s=0", timeline.DMAImage, 512, 1, time.Second},
		{"none", timeline.DMAImage, 512, 0, 0},
		{"r=1", timeline.VFIODev, 512, 0, 0},
		{"a=1", timeline.VFDriver, 512, 0, 0},
		{"nonet", timeline.VFDriver, 512, 0, 0},
		{"nonet", timeline.DMARAM, 512, 0, 0},
		{"nonet", timeline.GuestBoot, 512, 1, time.Second},
	} {
		if got := stage(c.arm, c.mib, c.of); got < c.least || got > c.most {
			t.Errorf("%s with %d MiB: %s takes %v, not %v to %v", c.arm, c.mib, c.of, got, c.least,
				c.most)
		}
	}
}

// A step alone is taken by one start at a time, and a start that is cancelled stops waiting for it.
func TestAStepAloneIsTakenInTurn(t *testing.T) {
	var inside, most atomic.Int32
	block := make(chan struct{})
	d := New(Config{Stages: []Step{{Stage: timeline.VFIODev, Takes: 1, Alone: true}},
		Wait: func(context.Context, time.Duration) error {
			if now := inside.Add(1); now > most.Load() {
				most.Store(now)
			}
			<-block
			inside.Add(-1)
			return nil
		}})
	start := func(ctx context.Context, id string) error {
		s, err := d.Start(ctx, sandbox.Spec{ID: id}, &timeline.Timeline{},
			func(sandbox.Record) error { return nil })
		if err == nil {
			s.Close()
		}
		return err
	}
	var starts sync.WaitGroup
	for _, id := range []string{"a", "b", "c"} {
		starts.Go(func() {
			if err := start(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	for inside.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := start(gone, "d"); err == nil {
		t.Error("a start that nobody waits for took its turn")
	}
	close(block)
	starts.Wait()
	if most.Load() != 1 {
		t.Errorf("%d starts took the step at once", most.Load())
	}
}
