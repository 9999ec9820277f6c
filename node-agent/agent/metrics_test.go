package agent

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	"github.com/fastiov/fastiov/node-agent/vf"
)

func TestCallsAreTimedByHowTheyEnded(t *testing.T) {
	a, _, _ := newAgent(t)
	node := a.Measured()
	if _, err := node.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128}); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Run(t.Context(), &api.RunRequest{Id: "nobody"}); err == nil {
		t.Error("nobody ran")
	}
	for _, want := range []string{`code="OK",method="Start"`, `code="NotFound",method="Run"`} {
		if text := expose(t, a.Metrics.calls); !strings.Contains(text,
			"fastiov_node_call_seconds_count{"+want+"} 1") {
			t.Errorf("no call with %s in\n%s", want, text)
		}
	}
	if text := expose(t, a); !strings.Contains(text, `fastiov_node_sandboxes{state="ready"} 1`) ||
		!strings.Contains(text, `fastiov_node_memory_bytes{state="reserved"} 1.34217728e+08`) {
		t.Errorf("the sandbox is not in\n%s", text)
	}
	if _, err := node.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
		t.Fatal(err)
	}
}

func TestVFsAreCountedByState(t *testing.T) {
	now := time.Now()
	vfs := []vf.Status{{BDF: "a", State: vf.Leased, Since: now.Add(-time.Minute)},
		{BDF: "b", State: vf.Idle, ResetFailures: 2, Faults: 1}, {BDF: "c", State: vf.Idle}}
	text := expose(t, collected(func(ch chan<- prometheus.Metric) {
		collectVFs(ch, func(d *prometheus.Desc, value float64, label string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, label)
		}, vfs, now)
	}))
	for _, want := range []string{
		`fastiov_node_vfs{state="idle"} 2`, `fastiov_node_vfs{state="leased"} 1`,
		`fastiov_node_vfs{state="quarantined"} 0`,
		`fastiov_node_vf_lease_age_seconds{vf="a"} 60`,
		`fastiov_node_vf_reset_failures_total{vf="b"} 2`, `fastiov_node_vf_faults_total{vf="b"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	m := NewMetrics(prometheus.NewRegistry())
	m.settled([]vf.Settled{
		{From: vf.Resetting, Took: time.Second},
		{From: vf.Preparing, Took: time.Second, Err: errors.New("stuck")},
	})
	text = expose(t, m.resets)
	if !strings.Contains(text, `_count{result="ok",task="reset"} 1`) ||
		!strings.Contains(text, `_count{result="failed",task="prepare"} 1`) {
		t.Error(text)
	}
}

// The express path is counted, and its state told, where the bridge has one.
func TestTheExpressPathIsCounted(t *testing.T) {
	a := &Agent{Config: Config{Express: func() (scon.State, error) {
		packets := map[string]uint64{"express": 7, "sample": 2}
		return scon.State{Answered: true, Packets: packets}, nil
	}}}
	text := expose(t, collected(func(ch chan<- prometheus.Metric) {
		a.collectExpress(ch, func(d *prometheus.Desc, value float64, label string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, label)
		})
	}))
	for _, want := range []string{`fastiov_node_express_packets_total{path="express"} 7`,
		`fastiov_node_express_packets_total{path="sample"} 2`,
		`fastiov_node_express_permitted{connection="answered"} 1`,
		`fastiov_node_express_permitted{connection="other"} 0`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

type collected func(chan<- prometheus.Metric)

func (c collected) Describe(chan<- *prometheus.Desc)    {}
func (c collected) Collect(ch chan<- prometheus.Metric) { c(ch) }

// expose returns the text that Prometheus reads of c.
func expose(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	w := httptest.NewRecorder()
	metrics.Page(registry).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}
