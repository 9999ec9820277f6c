//go:build dashboards || load

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/bench/scraper"
)

// A prom is a real Prometheus with our own configuration, but it scrapes every second instead of
// every five.
type prom struct{ url string }

// needPrometheus skips the test without a Prometheus, except in continuous integration, which has
// one.
func needPrometheus(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		missing(t, "there is no Prometheus here; install the package prometheus")
	}
}

func startPrometheus(t *testing.T, targets []string, flags ...string) *prom {
	t.Helper()
	dir := t.TempDir()
	const from = "../dashboards/prometheus"
	for _, file := range []string{"prometheus.yml", "recording.yml", "alerts.yml"} {
		content, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.ReplaceAll(content, []byte("_interval: 5s"), []byte("_interval: 1s"))
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal([]map[string]any{{"targets": targets}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "targets.yml"), list, 0o644); err != nil {
		t.Fatal(err)
	}
	at, stop, err := scraper.Run(t.Context(), filepath.Join(dir, "prometheus.yml"), dir, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return &prom{at}
}

// until polls another process, which does not report when it is ready.
func (p *prom) until(t *testing.T, within time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// ask calls the HTTP API and decodes the answer's data.
func (p *prom) ask(path string, values url.Values, data any) error {
	resp, err := http.Get(p.url + "/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s %v: %s", path, values, answer.Error)
	}
	return nil
}

// A series is a result of a query: one sample, or the samples along a range.
type series struct {
	Metric map[string]string
	Value  []any
	Values [][]any
}

// finite counts the samples that are numbers. A quantile of nothing is not a number.
func (s series) finite() (n int) {
	for _, sample := range append(s.Values, s.Value) {
		if len(sample) == 2 && sample[1] != "NaN" && !strings.HasSuffix(sample[1].(string), "Inf") {
			n++
		}
	}
	return n
}

// query asks once, or along the last minute, and keeps the series that have data.
func (p *prom) query(expr string, once bool) ([]series, error) {
	var data struct{ Result []series }
	var err error
	if once {
		err = p.ask("query", url.Values{"query": {expr}}, &data)
	} else {
		now := time.Now()
		err = p.ask("query_range", url.Values{
			"query": {expr}, "start": {fmt.Sprint(now.Add(-time.Minute).Unix())}, "end": {fmt.Sprint(now.Unix())}, "step": {"1"},
		}, &data)
	}
	var full []series
	for _, s := range data.Result {
		if s.finite() > 0 {
			full = append(full, s)
		}
	}
	return full, err
}
