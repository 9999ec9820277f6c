//go:build dashboards

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/fastiov/fastiov/dashboards"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch/couchtest"
	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// version is the version of a binary that no build has stamped.
const version = "unknown"

// A scene is the processes of docker-compose.yml: an invoker, a node agent over sim, and a store of
// traces. A second node has VFs: a real agent over a real VF pool, whose kernel is made of files.
// Everything that dashboards show happens there while the test runs.
type scene struct {
	t       *testing.T
	url     string
	key     openwhisk.Key
	run     string
	traces  string
	targets []string // of Prometheus
	pull    func() error
}

func newScene(t *testing.T) *scene {
	dir, metricsOf := t.TempDir(), listenLater(t)
	s := &scene{t: t, run: filepath.Join(dir, "node"), traces: listenLater(t)}
	background(t, "traces", "--listen", s.traces)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+s.traces)
	background(t, "agent", "--sandbox", "sim", "--sim-start", "150ms", "--memory", "2048",
		"--run-dir", s.run, "--state-dir", dir, "--metrics", metricsOf)
	socket, withVFs, counts := nodeWithVFs(t, dir)
	s.pull = pulls(t, counts)
	invokerRun, ofInvoker := filepath.Join(dir, "invoker"), listenLater(t)
	background(t, "invoker", "--node", filepath.Join(s.run, nodeSocket), "--node", socket,
		"--run-dir", invokerRun, "--state-dir", dir,
		"--listen", "127.0.0.1:0", "--metrics", ofInvoker, "--wait", "2s",
		"--concurrent-invocations", "12", "--invocations-per-minute", "100000")
	address := readListen(t, invokerRun)
	var err error
	if s.key, err = openwhisk.LoadKey(address, keyFile(dir)); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + address + "/api/v1/namespaces/_/"
	s.targets = []string{metricsOf, withVFs, ofInvoker, invokerInCluster(t, s.run)}
	return s
}

// invokerInCluster starts an invoker over the node of that run directory. It gets no calls.
func invokerInCluster(t *testing.T, run string) (metricsAddress string) {
	t.Helper()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1),
		kfake.SeedTopics(1, "completed0", "health", "cacheInvalidation"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	db, metricsAddress := couchtest.New(t), listenLater(t)
	background(t, "invoker", "--run-dir", run,
		"--bus", "kafka://"+kafka.ListenAddrs()[0], "--invoker-id", "0",
		"--metrics", metricsAddress, "--couchdb", "http://"+couchtest.User+"@"+db.URL.Host+
			db.URL.Path,
		"--couchdb-password-file", fileOf(t, couchtest.Password))
	return metricsAddress
}

// nodeWithVFs serves a node agent on a Unix socket and its metrics over HTTP. One of its VFs cannot
// be reset any more after its first use.
func nodeWithVFs(t *testing.T, dir string) (
	socket, metricsAddress string, counts *agent.Metrics,
) {
	t.Helper()
	tree, err := vftest.New(filepath.Join(dir, "host"))
	if err != nil {
		t.Fatal(err)
	}
	tree.ResetTime = 20 * time.Millisecond
	if err := tree.AddPF(vftest.IGB); err != nil {
		t.Fatal(err)
	}
	measured := prometheus.NewRegistry()
	measured.MustRegister(metrics.Build(version))
	counts = agent.NewMetrics(measured)
	pool, err := vf.Open(t.Context(), tree.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	tree.Refuse(func(op, bdf string) error {
		if op == "reset" && bdf == "0000:01:10.6" {
			return fmt.Errorf("the test refuses it")
		}
		return nil
	})
	held := vf.Owner{Kind: vf.Sandbox, Name: "held"} // other leases come and go
	if _, err := pool.Lease(held, vf.Want{}); err != nil {
		t.Fatal(err)
	}
	starter := &startup.Starter{
		RunDir: filepath.Join(dir, "vfs"),
		Driver: sim.New(sim.Config{Stages: sim.Table1(100 * time.Millisecond)}), Images: noImages{},
		Admission: startup.NewAdmission(1<<20, netvf.Path{Pool: pool}),
		Network: startup.Network{Subnet: netip.MustParsePrefix("10.0.2.0/24"),
			First: netip.MustParseAddr("10.0.2.100")},
		Deadlines: startup.Deadlines{Image: time.Minute, Wire: time.Minute, Boot: time.Minute,
			Init: time.Minute},
		Reports: &startup.Reports{Dir: t.TempDir(), Keep: 1}, Log: slog.New(slog.DiscardHandler),
	}
	a := agent.New(agent.Config{
		Version: "test", Driver: "sim", Starter: starter, VFs: pool, Metrics: counts,
		Log: starter.Log, Express: expressPath(),
	})
	go a.Follow(t.Context())
	measured.MustRegister(a)
	socket = filepath.Join(dir, "vfs.sock")
	serveNode(t, socket, a.Measured())
	page := httptest.NewServer(metrics.Page(measured))
	t.Cleanup(page.Close)
	return socket, strings.TrimPrefix(page.URL, "http://"), counts
}

// expressPath returns what an express path tells, over which more packets go each time that it is
// asked.
func expressPath() func() (scon.State, error) {
	var packets atomic.Uint64
	return func() (scon.State, error) {
		state := scon.State{Answered: true, Packets: map[string]uint64{}}
		for _, path := range scon.Paths {
			state.Packets[path] = packets.Add(1)
		}
		return state, nil
	}
}

// pulls returns a function that pulls an image which was not there before, from a registry of its
// own. What it does is counted there.
func pulls(t *testing.T, counts *agent.Metrics) (pull func() error) {
	t.Helper()
	hub := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(hub.Close)
	cache, err := image.Open(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Close)
	cache.Fetched, cache.Pulled = counts.Fetched, counts.Pulled
	allowed, err := oci.ParseRegistries([]string{hub.URL})
	if err != nil {
		t.Fatal(err)
	}
	cache.Source.Allow(allowed, nil)
	action := &v1.ConfigFile{OS: "linux", Architecture: "amd64",
		Config: v1.Config{Entrypoint: []string{"/action"}}}
	plain, err := mutate.ConfigFile(empty.Image, action)
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	return func() error {
		number++
		ref := fmt.Sprintf("%s/team/action:%d", strings.TrimPrefix(hub.URL, "http://"), number)
		program, err := crane.Layer(map[string][]byte{"action": []byte(ref)})
		if err != nil {
			return err
		}
		made, err := mutate.AppendLayers(plain, program)
		if err != nil {
			return err
		}
		if err := crane.Push(made, ref); err != nil {
			return err
		}
		_, release, err := cache.Pull(t.Context(), ref, "")
		if err == nil {
			release()
		}
		return err
	}
}

// call calls the API and returns the status.
func (s *scene) call(method, path, body string) int {
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth(s.key.UUID, s.key.Secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// round makes cold starts, warm calls, a failing call, a burst above the limit, a pull, and a call
// that a node refuses.
func (s *scene) round() {
	expect := func(want, got int, what string) {
		// there may be no room, since one VF is broken
		if got != want && got != http.StatusServiceUnavailable {
			s.t.Errorf("%s: HTTP %d, want %d", what, got, want)
		}
	}
	for _, name := range []string{"a", "b", "c"} { // a deleted action starts cold again
		s.call("DELETE", "actions/"+name, "")
		expect(200, s.call("PUT", "actions/"+name, helloAction), "put")
	}
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "a", "b", "c"} {
		wg.Go(func() {
			expect(200, s.call("POST", "actions/"+name+"?blocking=true", `{"sleep_ms": 20}`),
				"a burst")
		})
	}
	wg.Wait()
	for range 5 {
		expect(200, s.call("POST", "actions/a?blocking=true", `{}`), "a warm call")
	}
	expect(502, s.call("POST", "actions/b?blocking=true", `{"fail": true}`), "a failure")
	var refused atomic.Int32
	for range 20 {
		wg.Go(func() {
			if s.call("POST", "actions/c?blocking=true",
				`{"sleep_ms": 300}`) == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if refused.Load() == 0 {
		s.t.Error("none of 20 calls at once was refused, and 12 are allowed")
	}
	if err := s.pull(); err != nil {
		s.t.Error(err)
	}
	node, hangUp, err := dialNode(s.run)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer hangUp()
	if _, err := node.Report(s.t.Context(), &api.ReportRequest{Id: "nobody"}); err == nil {
		s.t.Error("there is a report of nobody")
	}
}

// TestEveryPanelReturnsData runs every query of every dashboard against a real Prometheus that has
// scraped a real run, and compares the scraped metrics with the list of metrics.
func TestEveryPanelReturnsData(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute, with a Prometheus")
	}
	needPrometheus(t)
	s := newScene(t)
	p := startPrometheus(t, s.targets, "--enable-feature=exemplar-storage")
	native := startPrometheus(t, s.targets, "--enable-feature=native-histograms")
	for begin := time.Now(); time.Since(begin) < 15*time.Second; { // rates need several scrapes
		s.round()
	}
	trace := p.aTrace(t)
	values := strings.NewReplacer("$__rate_interval", "5s", "$__interval", "1s",
		"$__range", "60s", "$trace", trace, "$before", version, "$after", version,
		"$flags_before", "none", "$flags_after", "none")
	labelled := regexp.MustCompile(`\$\w+`)
	panels, queries := 0, 0
	for file, d := range dashboards.All() {
		for _, panel := range d.Panels {
			panels++
			for _, q := range panel.Targets {
				queries++
				if q.Datasource.Type == "jaeger" {
					s.traced(file, panel.Title, q, values)
					continue
				}
				q.Expr = labelled.ReplaceAllString(values.Replace(q.Expr), ".*")
				p.shows(t, file, panel.Title, q)
			}
		}
	}
	if !t.Failed() {
		t.Logf("%d queries of %d panels in %d dashboards returned data", queries, panels,
			len(dashboards.All()))
	}
	p.countsWhatIsListed(t)
	p.rulesWork(t)
	if found, err := native.query(
		`histogram_quantile(0.99, sum(rate(fastiov_cold_start_seconds[10s])))`,
		false); err != nil || len(found) == 0 {
		t.Errorf("a Prometheus that wants native histograms gets none: %v", err)
	}
}

// shows runs one query, and checks that its legend is not empty.
func (p *prom) shows(t *testing.T, file, title string, q dashboards.Target) {
	t.Helper()
	found, err := p.query(q.Expr, q.Instant)
	if err != nil || len(found) == 0 {
		t.Errorf("%s, %q, query %s: no data (%v)\n%s", file, title, q.RefID, err, q.Expr)
		return
	}
	for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.LegendFormat,
		-1) {
		for _, series := range found {
			if series.Metric[label[1]] == "" {
				t.Errorf("%s, %q, query %s: its legend wants the label %s, which %v has not", file,
					title, q.RefID, label[1], series.Metric)
			}
		}
	}
}

// aTrace returns the id of a trace that an exemplar leads to.
func (p *prom) aTrace(t *testing.T) (id string) {
	t.Helper()
	p.until(t, 20*time.Second, "an exemplar of a cold start is stored", func() bool {
		var found []struct {
			Exemplars []struct{ Labels map[string]string }
		}
		now := time.Now()
		err := p.ask("query_exemplars", url.Values{
			"query": {"fastiov_cold_start_seconds_bucket"}, "start": {fmt.Sprint(now.Add(-time.Minute).Unix())}, "end": {fmt.Sprint(now.Unix())},
		}, &found)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			for _, e := range f.Exemplars {
				id = e.Labels["trace_id"]
			}
		}
		return id != ""
	})
	return id
}

// traced sends the store of traces the requests of Grafana's Jaeger data source.
func (s *scene) traced(file, title string, q dashboards.Target, values *strings.Replacer) {
	path := "/" + values.Replace(q.Query)
	if q.QueryType == "search" {
		now := time.Now()
		path = "?" + url.Values{
			"service": {q.Service}, "operation": {q.Operation}, "limit": {fmt.Sprint(q.Limit)},
			"start": {fmt.Sprint(now.Add(-time.Minute).UnixMicro())}, "end": {fmt.Sprint(now.UnixMicro())},
		}.Encode()
	}
	// traces are batched for a second
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + s.traces + "/api/traces" + path)
		if err != nil {
			s.t.Fatal(err)
		}
		var answer struct {
			Data []struct {
				Spans []struct{ OperationName string }
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&answer)
		resp.Body.Close()
		if err == nil && len(answer.Data) > 0 && len(answer.Data[0].Spans) >= 10 {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("%s, %q: no trace with the stages of a cold start (%v, HTTP %d, %+v)", file,
				title, err, resp.StatusCode, answer)
			return
		}
	}
}

// countsWhatIsListed compares the scraped metrics with docs/metrics.md. Each listed metric is
// there, with its type, exactly its labels, and only documented values of them. No other metric of
// ours is there.
func (p *prom) countsWhatIsListed(t *testing.T) {
	t.Helper()
	var types map[string][]struct{ Type string }
	if err := p.ask("metadata", nil, &types); err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range dashboards.Metrics() {
		listed[m.Name] = true
		name := m.Name
		if m.Type == "histogram" {
			name += "_count"
		}
		found, err := p.query(name, true)
		if err != nil || len(found) == 0 {
			t.Errorf("%s is listed and nobody counts it (%v)", m.Name, err)
		}
		meta := append(types[m.Name], types[strings.TrimSuffix(m.Name, "_total")]...)
		if len(meta) == 0 || meta[0].Type != m.Type {
			t.Errorf("%s is listed as a %s and scraped as %v", m.Name, m.Type, meta)
		}
		for _, s := range found {
			for label, value := range s.Metric {
				if slices.Contains([]string{"__name__", "instance", "job"}, label) {
					continue
				}
				if all, bound := dashboards.Values(m.Name, label); !slices.Contains(m.Labels,
					label) || bound == "" && !slices.Contains(all, value) {
					t.Errorf("%s has %s=%q, which is not listed", m.Name, label, value)
				}
			}
		}
	}
	for name := range types {
		if strings.HasPrefix(name, "fastiov_") && !listed[name] && !listed[name+"_total"] {
			t.Errorf("%s is counted and not listed", name)
		}
	}
}

// rulesWork checks that every rule is evaluated without an error, and that every recorded one has
// data.
func (p *prom) rulesWork(t *testing.T) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Type, Health, LastError string }
		}
	}
	if err := p.ask("rules", nil, &rules); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			seen++
			if r.Health != "ok" {
				t.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
			if r.Type == "recording" {
				if found, err := p.query(r.Name, false); err != nil || len(found) == 0 {
					t.Errorf("%s has recorded nothing (%v)", r.Name, err)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("Prometheus has no rules")
	}
}
