package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/testbed"
)

// The clock of an emulated host is set an hour ahead, an hour behind and right again, while calls
// are promised, queue, start and run, and the invoker is killed once. Each call has one record,
// none runs twice, none takes less than no time, and none expires: a call that waits in the process
// of its promise ages by the monotonic clock, and the next invoker starts while the wall clock is
// behind, so what it reads is less than an hour old.
func TestAClockThatStepsBreaksNoPromise(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		begun := time.Now()
		set := func(ahead time.Duration) {
			t.Helper()
			now := unix.NsecToTimespec(begun.Add(time.Since(begun) + ahead).UnixNano())
			if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { set(0) })

		c := newCrashes(t, "")
		c.runs.turns = make(chan struct{})
		c.invoker("--sim-start", "1s", "--memory", "1024") // room for four sandboxes
		w := c.invokers[0]
		actions := []string{"one", "other"} // each takes the other's room
		for _, name := range actions {
			w.put(name, helloAction)
		}
		queue := func(calls int) { // more than can run at once
			t.Helper()
			var all sync.WaitGroup
			for n := range calls {
				all.Go(func() {
					id, status := w.invoke(t.Context(), actions[n%2], `{"sleep_ms":100}`)
					if status != http.StatusAccepted {
						t.Errorf("a call is answered with %d", status)
						return
					}
					c.mu.Lock()
					defer c.mu.Unlock()
					c.promised = append(c.promised, id)
				})
			}
			all.Wait()
			for range 4 {
				select {
				case c.runs.turns <- struct{}{}:
				case <-time.After(time.Minute):
					t.Fatal("no call runs")
				}
			}
		}
		queue(15)
		set(61 * time.Minute)
		queue(15)
		set(-61 * time.Minute)
		queue(15)
		c.kill()
		queue(8)
		set(0)
		queue(7)
		close(c.runs.turns)
		c.judge()
		failed := 0
		for _, id := range c.promised {
			var r struct {
				Start, End, Duration int64
				Annotations          []struct {
					Key   string
					Value any
				}
				Response struct {
					Success bool
					Result  struct{ Error string }
				}
			}
			status := w.call(t.Context(), "GET", "activations/"+id, "", &r)
			if status != http.StatusOK {
				continue // as in judge
			}
			if r.End < r.Start || r.Duration < 0 {
				t.Errorf("%s: from %d to %d, %d ms", id, r.Start, r.End, r.Duration)
			}
			for _, a := range r.Annotations {
				if ms, ok := a.Value.(float64); ok && strings.HasSuffix(a.Key, "Time") && ms < 0 {
					t.Errorf("%s: %s %v", id, a.Key, ms)
				}
			}
			if r.Response.Success {
				continue
			}
			failed++
			if !strings.Contains(r.Response.Result.Error, "the invoker ended while it ran") {
				t.Errorf("%s failed: %s", id, r.Response.Result.Error)
			}
		}
		t.Logf("%d failed, as they ran when the invoker was killed", failed)
	})
}
