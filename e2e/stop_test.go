package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// standing starts an invoker over a simulated agent, and returns it and the directory where it
// reports that it is ready.
func standing(t *testing.T, more ...string) (w *whisk, dir string) {
	t.Helper()
	dir = t.TempDir()
	background(t, "agent", "--sandbox", "sim", "--metrics", "",
		"--run-dir", filepath.Join(dir, "agent"), "--state-dir", filepath.Join(dir, "node"))
	w = &whisk{t: t, name: "one", address: listenLater(t), metrics: listenLater(t)}
	var err error
	if w.key, err = openwhisk.LoadKey(w.address, ""); err != nil {
		t.Fatal(err)
	}
	w.args = append([]string{"invoker", "--node", filepath.Join(dir, "agent", nodeSocket),
		"--listen", w.address,
		"--metrics", w.metrics, "--run-dir", filepath.Join(dir, "run"), "--state-dir",
		filepath.Join(dir, "state")}, more...)
	w.start()
	t.Cleanup(w.kill)
	return w, dir
}

// stop tells it to end. The channel is closed when it has ended.
func (w *whisk) stop() (ended chan struct{}) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.cmd.Wait()
	}()
	return ended
}

func (w *whisk) readyz() int {
	resp, err := http.Get("http://" + w.metrics + "/readyz")
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// until waits until is returns true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited a minute, and not yet: %s", what)
		}
	}
}

type reply struct {
	status int
	body   struct {
		ActivationID string
		Response     struct {
			Status string
			Result any
		}
	}
}

func (w *whisk) ask(path, arguments string) chan reply {
	answer := make(chan reply, 1)
	go func() {
		var r reply
		r.status = w.call(w.t.Context(), "POST", "actions/"+path, arguments, &r.body)
		answer <- r
	}()
	return answer
}

// runs waits until n calls are under way in the agent's sandboxes.
func (w *whisk) runs(n int) {
	w.t.Helper()
	until(w.t, fmt.Sprint(n, " calls run"), func() bool {
		return sample(w.t, w.metrics, `fastiov_pool_sandboxes{phase="running"}`) == float64(n)
	})
}

func TestAStopWaitsForWhatRuns(t *testing.T) {
	w, _ := standing(t, "--drain", "2m", "--concurrent-invocations", "10")
	w.put("hello", helloAction)
	blocking := w.ask("hello?blocking=true", `{"sleep_ms":10000}`)
	promised, status := w.invoke(t.Context(), "hello", `{"sleep_ms":10001}`)
	if status != http.StatusAccepted {
		t.Fatal(status)
	}
	w.runs(2)
	if got := w.readyz(); got != http.StatusOK {
		t.Errorf("/readyz answers %d before the stop", got)
	}
	ended := w.stop()
	until(t, "/readyz answers 503", func() bool {
		return w.readyz() == http.StatusServiceUnavailable
	})
	until(t, "no new request is taken", func() bool { // soon after it says that it is not ready
		return w.call(t.Context(), "GET", "actions", "", new(any)) == 0
	})
	if r := <-blocking; r.status != http.StatusOK {
		t.Errorf("the call that ran is answered with %d: %+v", r.status, r.body)
	}
	<-ended
	w.start()
	var record struct{ Response struct{ Status string } }
	if status := w.call(t.Context(), "GET", "activations/"+promised, "", &record); status != 200 ||
		record.Response.Status != "success" {
		t.Errorf("the promised call that ran has the record %d %+v", status, record)
	}
}

// A call that takes longer than the stop waits is ended, and its answer and its record say so.
func TestAStopEndsWhatTakesTooLong(t *testing.T) {
	w, _ := standing(t, "--drain", "100ms")
	w.put("hello", helloAction)
	blocking := w.ask("hello?blocking=true", `{"sleep_ms":50000}`)
	w.runs(1)
	ended := w.stop()
	r := <-blocking
	if r.status != http.StatusInternalServerError ||
		r.body.Response.Status != "whisk internal error" {
		t.Errorf("answered with %d %+v", r.status, r.body)
	}
	t.Log(r.body.Response.Result)
	<-ended
	w.start()
	if status := w.call(t.Context(), "GET",
		"activations/"+r.body.ActivationID, "", new(any)); status != 200 {
		t.Errorf("its record: %d", status)
	}
}

func TestTheNextPoolHasWhatWasLeftWarm(t *testing.T) {
	for name, pause := range map[string]string{"idle": "0", "paused": "1ms"} {
		t.Run(name, func(t *testing.T) {
			w, dir := standing(t, "--pause-after", pause)
			cold := func(want float64) {
				t.Helper()
				if r := <-w.ask("hello?blocking=true", `{}`); r.status != 200 {
					t.Fatalf("%+v", r)
				}
				if got := sample(t, w.metrics,
					`fastiov_pool_decisions_total{kind="cold"}`); got != want {
					t.Errorf("%v cold starts, want %v", got, want)
				}
			}
			w.put("hello", helloAction)
			cold(1)
			if name == "paused" {
				until(t, "it is paused", func() bool {
					return sample(t, w.metrics, `fastiov_pool_sandboxes{phase="paused"}`) == 1
				})
			}
			<-w.stop()
			w.start()
			cold(0)
			w.kill() // a process that a crash leaves may be in any state
			w.start()
			cold(1)
			<-w.stop()
			if _, err := os.Stat(filepath.Join(dir, "run", "warm.json")); err != nil {
				t.Error(err)
			}
		})
	}
}

// sample returns the value of one of an invoker's series, or -1.
func sample(t *testing.T, address, series string) float64 {
	t.Helper()
	for line := range strings.Lines(scrape(t, address)) {
		if value, is := strings.CutPrefix(line, series+" "); is {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return -1
}
