//go:build load

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/image/build"
)

// A target is a fastiov over simulated sandboxes that k6 calls.
type target struct {
	t            *testing.T
	k6           string
	url, metrics string
	key          string
}

// upForLoad needs k6, which no test builds, since that takes minutes.
func upForLoad(t *testing.T, start time.Duration) *target {
	t.Helper()
	cache, err := build.Open("", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Close)
	k6, built := cache.HasK6(t.Context())
	if !built {
		t.Fatal("k6 has not been built; `fastiov k6 version` builds it, as `make load` does")
	}
	dir := t.TempDir()
	x := &target{t: t, k6: k6, metrics: listenLater(t)}
	listen, run := listenLater(t), filepath.Join(dir, "run")
	downAfter(t, run)
	must(t, "up", "--sandbox", "sim", "--sim-start", start.String(), "--run-dir", run,
		"--state-dir", dir, "--listen", listen, "--metrics", x.metrics)
	key, err := openwhisk.LoadKey(listen, "")
	if err != nil {
		t.Fatal(err)
	}
	x.url, x.key = "http://"+listen, key.String()
	return x
}

// A summary is k6's output at the end of a run.
type summary struct {
	Metrics map[string]struct {
		Values map[string]float64
	}
	text string
	exit int
}

func (s summary) value(metric, of string) float64 { return s.Metrics[metric].Values[of] }

// called returns how many calls there were, and how many of them failed.
func (s summary) called() (all, failed float64) {
	return s.value("failed", "passes") + s.value("failed", "fails"), s.value("failed", "passes")
}

// load runs one of the scenarios. Settings are k6's or the scenario's, as NAME=VALUE.
func (x *target) load(script string, args []string, settings ...string) summary {
	x.t.Helper()
	file := filepath.Join(x.t.TempDir(), "summary.json")
	cmd := exec.CommandContext(x.t.Context(), x.k6,
		append(append([]string{"run", "--quiet", "--no-usage-report", "--address", ""}, args...),
			script)...)
	cmd.Dir = "../load"
	cmd.Env = append(append(os.Environ(), "APIHOST="+x.url, "AUTH="+x.key, "SUMMARY="+file),
		settings...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		x.t.Fatal(err)
	}
	s := summary{text: said.String(), exit: cmd.ProcessState.ExitCode()}
	content, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil && s.exit == 0 {
		x.t.Fatalf("%s: %v\n%s", script, err, s.text)
	}
	return s
}

// A seen holds the fields of an activation record.
type seen struct {
	Name        string
	Response    struct{ Result map[string]any }
	Annotations []struct {
		Key   string
		Value json.RawMessage
	}
}

func (s seen) note(key string, into any) bool {
	for _, a := range s.Annotations {
		if a.Key == key {
			return json.Unmarshal(a.Value, into) == nil
		}
	}
	return false
}

// records returns the records of all calls of functions whose names begin with prefix.
func (x *target) records(prefix string) (all []seen) {
	x.t.Helper()
	for skip := 0; ; skip += 200 {
		var page []seen
		x.get(fmt.Sprintf("%s/api/v1/namespaces/_/activations?docs=true&limit=200&skip=%d",
			x.url, skip), &page)
		for _, a := range page {
			if strings.HasPrefix(a.Name, prefix) {
				all = append(all, a)
			}
		}
		if len(page) < 200 {
			return all
		}
	}
}

func (x *target) get(url string, into any) {
	x.t.Helper()
	x.ask(http.MethodGet, url, nil, into)
}

func (x *target) put(action, body string) {
	x.t.Helper()
	x.ask(http.MethodPut, x.url+"/api/v1/namespaces/_/actions/"+action,
		strings.NewReader(body), &struct{}{})
}

func (x *target) delete(action string) {
	x.t.Helper()
	x.ask(http.MethodDelete, x.url+"/api/v1/namespaces/_/actions/"+action, nil, &struct{}{})
}

func (x *target) ask(method, url string, body io.Reader, into any) {
	x.t.Helper()
	req, err := http.NewRequestWithContext(x.t.Context(), method, url, body)
	if err != nil {
		x.t.Fatal(err)
	}
	user, password, _ := strings.Cut(x.key, ":")
	req.SetBasicAuth(user, password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(content, into) != nil {
		x.t.Fatalf("%s: %s %.300s", url, resp.Status, content)
	}
}

// TestLoadScenarios runs each scenario with few calls, and compares k6's summary with the
// activation records.
func TestLoadScenarios(t *testing.T) {
	x := upForLoad(t, 200*time.Millisecond)
	for _, c := range []struct {
		script, prefix string
		settings       []string
		called         int // 0: not checked, because the number depends on time
	}{
		{"burst.js", "hello-load", []string{"N=40"}, 40},
		{"steady.js", "hello-load", []string{"RATE=20", "DURATION=3s"}, 0},
		{"ramp.js", "hello-load", []string{"PEAK=20", "DURATION=2"}, 0},
		{"mixed.js", "hello-load", []string{"BURSTS=2", "EVERY=2", "N=5", "RATE=10"}, 0},
		{"trace.js", "trace-load", []string{"MINUTES=5", "SPEED=60"}, 88},
		{"trace.js", "trace-load", []string{"TRACE=traces/azure2021.csv", "MINUTES=5", "SPEED=60"}, 88},
	} {
		t.Run(strings.Join(append([]string{c.script}, c.settings...), " "), func(t *testing.T) {
			before := len(x.records(c.prefix))
			s := x.load(c.script, nil, c.settings...)
			t.Log(s.text)
			all, failed := s.called()
			if s.exit != 0 || failed > 0 || all == 0 || c.called > 0 && int(all) != c.called ||
				s.value("dropped_iterations", "count") > 0 {
				t.Errorf("exit code %d, %v called, want %d, %v failed", s.exit,
					all, c.called, failed)
			}
			records := x.records(c.prefix)
			cold := 0
			for _, r := range records[:len(records)-before] { // newest first
				var took float64
				if r.note("initTime", &took) {
					cold++
				}
			}
			if len(records)-before != int(all) || cold != int(s.value("cold", "passes")) ||
				cold != int(s.value("invocation{start:cold}", "count")) || cold == 0 {
				t.Errorf("k6 saw %v calls, %v of them cold; there are %d records, %d of them cold",
					all, s.value("cold", "passes"), len(records)-before, cold)
			}
			if got := s.value("stage_4_vfio_dev", "count"); int(got) != cold {
				t.Errorf("%v of %d cold starts tell of the VF's opening", got, cold)
			}
		})
	}
	// Copies of a deployed function are called with its parameters, in turn with the other
	// functions.
	x.put("mine",
		`{"exec":{"kind":"nodejs:18","code":"function main(a) { return a }"},"parameters":[{"key":"own","value":1}]}`)
	if s := x.load("burst.js", nil, "N=6", "FUNCTIONS=hello,mine"); s.exit != 0 {
		t.Error(s.text)
	}
	copies := x.records("mine-load")
	for _, r := range copies {
		if r.Response.Result["own"] != 1.0 {
			t.Errorf("a copy answered %v", r.Response.Result)
		}
	}
	if len(copies) != 3 {
		t.Errorf("%d of 6 calls were of the second function", len(copies))
	}
	x.delete("mine")
	var left []struct{ Name string }
	x.get(x.url+"/api/v1/namespaces/_/actions", &left)
	if len(left) > 0 {
		t.Errorf("functions left behind: %v", left)
	}
}

// A missed threshold is k6's exit code 99 and a line. A function that cannot be called is named.
func TestLoadSaysWhatIsWrong(t *testing.T) {
	x := upForLoad(t, 50*time.Millisecond)
	for _, c := range []struct {
		name     string
		settings []string
		exit     int
		want     string
	}{
		{"too slow", []string{"COLD_P99_MS=1"}, 99, "MISSED: invocation{start:cold} p(99)<1"},
		{"no such function", []string{"FUNCTIONS=nobody"}, 107, "there is no function nobody; deploy it"},
		{"a wrong key", []string{"AUTH=a:b"}, 107, "is fastiov up, and AUTH its key?"},
		{"nobody there", []string{"APIHOST=http://127.0.0.1:1"}, 107, "is fastiov up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if s := x.load("burst.js", nil, c.settings...); s.exit != c.exit ||
				!strings.Contains(s.text, c.want) {
				t.Errorf("exit code %d, %s", s.exit, s.text)
			}
		})
	}
}

// How long cold starts took, from the request to the last byte, is measured by k6, by the records
// and by Prometheus. In Prometheus's layout of buckets, each quantile lies in the same bucket for
// all three, or in a neighbouring one.
func TestOneSpanOneTail(t *testing.T) {
	needPrometheus(t)
	x := upForLoad(t, 300*time.Millisecond)
	prometheus := startPrometheus(t, []string{x.metrics}, "--web.enable-remote-write-receiver").url
	const calls = 150
	s := x.load("burst.js", []string{"--out", "experimental-prometheus-rw"}, "N="+
		strconv.Itoa(calls),
		"K6_PROMETHEUS_RW_SERVER_URL="+prometheus+"/api/v1/write",
		"K6_PROMETHEUS_RW_TREND_STATS=p(99)")
	if s.exit != 0 {
		t.Fatal(s.text)
	}
	var took []float64
	for _, r := range x.records("hello-load") {
		var start struct{ EndToEndMs float64 }
		if r.note("coldStart", &start) {
			took = append(took, start.EndToEndMs/1000)
		}
	}
	slices.Sort(took)
	cold := len(took)
	if cold != int(s.value("invocation{start:cold}", "count")) || cold < calls/2 {
		t.Fatalf("%d of %d were cold by their records, %v by k6", cold, calls,
			s.value("invocation{start:cold}", "count"))
	}
	for deadline := time.Now().Add(30 * time.Second); x.query(prometheus,
		"sum(fastiov_cold_start_seconds_count)")[""] != float64(cold); {
		if time.Now().After(deadline) {
			t.Fatalf("Prometheus does not see %d cold starts", cold)
		}
		time.Sleep(100 * time.Millisecond)
	}
	var bounds []float64
	for le := range x.query(prometheus, "sum by (le) (fastiov_cold_start_seconds_bucket)") {
		bound, err := strconv.ParseFloat(le, 64)
		if err != nil {
			t.Fatal(err)
		}
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	bucket := func(seconds float64) int { n, _ := slices.BinarySearch(bounds, seconds); return n }
	for stat, q := range map[string]float64{"med": 0.5, "p(90)": 0.9, "p(99)": 0.99} {
		byK6 := s.value("invocation{start:cold}", stat) / 1000
		byRecords := took[int(math.Ceil(q*float64(cold)))-1]
		byPrometheus := x.query(prometheus, fmt.Sprintf(
			"histogram_quantile(%g, sum by (le) (fastiov_cold_start_seconds_bucket))", q))[""]
		in := []int{bucket(byK6), bucket(byRecords), bucket(byPrometheus)}
		t.Logf("q %g: k6 %.4f s, records %.4f s, Prometheus %.4f s; buckets %v", q, byK6, byRecords,
			byPrometheus, in)
		// The median of a burst is not compared: k6 runs on the CPUs that it measures, and its
		// calls wait for each other on both sides.
		if q > 0.5 && slices.Max(in)-slices.Min(in) > 1 {
			t.Errorf("quantile %g: k6 says %g s, the records %g s, Prometheus %g s; buckets %v", q,
				byK6, byRecords, byPrometheus, in)
		}
	}
	if pushed := x.query(prometheus, `k6_invocation_p99{start="cold"}`); len(pushed) != 1 {
		t.Errorf("k6 pushed %v", pushed)
	}
}

// query returns the values of an instant query by their label le, or "" without that label.
func (x *target) query(base, expression string) map[string]float64 {
	x.t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	x.get(base+"/api/v1/query?query="+url.QueryEscape(expression), &answer)
	values := map[string]float64{}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			x.t.Fatal(err)
		}
		values[r.Metric["le"]] = value
	}
	return values
}
