package metrics

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// agentPage serves a histogram with an exemplar on a Unix socket until the test ends.
func agentPage(t *testing.T) (socket string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	seconds := Seconds("fastiov_node_test_seconds", "A test.")
	registry.MustRegister(seconds)
	seconds.WithLabelValues().(prometheus.ExemplarObserver).ObserveWithExemplar(0.01,
		prometheus.Labels{"trace_id": "abc"})
	socket = filepath.Join(t.TempDir(), "metrics.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Page(registry)}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return socket
}

func page(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return string(text)
}

func TestAPageShowsWhatAnotherProcessHas(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(Build("test"))
	socket := agentPage(t)
	both := Page(own, Remote(socket)...)
	text := page(t, both)
	for _, want := range []string{`fastiov_build_info{version="test"} 1`,
		"fastiov_node_test_seconds_count 1", `# {trace_id="abc"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	families, err := Remote(socket)[0].Gather()
	native := false
	for _, f := range families {
		native = native || f.GetType() == dto.MetricType_HISTOGRAM &&
			len(f.Metric[0].Histogram.PositiveSpan) > 0
	}
	if err != nil || !native {
		t.Errorf("the native buckets are lost: %v, %v", families, err)
	}
}

func TestAPageIsThereWithoutTheOther(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(Build("test"))
	if text := page(t,
		Page(own, Remote(filepath.Join(t.TempDir(), "nobody"))...)); !strings.Contains(text,
		"fastiov_build_info{") {
		t.Errorf("%s", text)
	}
	if Remote("") != nil {
		t.Error("no path is a page")
	}
}
