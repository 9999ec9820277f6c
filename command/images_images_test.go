//go:build images

package command

import (
	"io"
	"log"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// TestTwoHundredStartsOfTwentyImages: their stage image is the same in the records, in what a burst
// makes of them and in what Prometheus reads, and each image is pulled once.
func TestTwoHundredStartsOfTwentyImages(t *testing.T) {
	const starts, kinds = 200, 20
	t.Setenv("FASTIOV_CACHE", t.TempDir())
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	b := bench.Burst{Name: "images", N: starts, Rounds: 1, Memory: 256,
		Code: functions.HelloPython, Out: io.Discard}
	for n := range kinds {
		b.Images = append(b.Images, pushImage(t, server.URL, n))
	}
	over, err := driverNamed("sim")
	if err != nil {
		t.Fatal(err)
	}
	withImages := *over
	withImages.images = true
	var n nodeFlags
	var i invokerFlags
	words := &cobra.Command{}
	n.register(words)
	i.register(words)
	n.runDir, n.sandbox, n.simStart = t.TempDir(), &withImages, 100*time.Millisecond
	n.stateDir, n.registries.allowed = n.runDir, []string{server.URL}
	if n.metrics, err = bench.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	own, err := openOwn(t.Context(), &n, &i, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer own.close()
	own.aim(&b)
	result, err := b.Run(t.Context())
	if err != nil || result.Answered != starts || result.Leaked != 0 {
		t.Fatalf("%+v, %v", result, err)
	}

	var recorded []float64
	var sum float64
	waited := 0
	for _, start := range result.Starts {
		var spanned time.Duration
		for _, span := range start.Spans {
			if span.Stage == timeline.Image {
				spanned += span.End.Sub(span.Begin)
			}
		}
		if p := start.Pull; p != nil {
			if waited++; p.Received == 0 || p.Layers == 0 || p.Fetched > p.Layers {
				t.Errorf("a start waited for a pull that did %+v", p)
			}
		}
		ms := start.StagesMs[timeline.Image]
		if off := math.Abs(ms - float64(spanned)/1e6); off > 0.1 {
			t.Errorf("a record has %.3f ms in its sums and the span %s", ms, spanned)
		}
		recorded, sum = append(recorded, ms), sum+ms
	}
	if waited < kinds {
		t.Errorf("%d starts say that they waited for a pull, and there were %d", waited, kinds)
	}
	slices.Sort(recorded)
	q := result.Stages[timeline.Image]
	if len(recorded) != starts || q.Count != starts || q.Max != recorded[starts-1] ||
		q.Median < recorded[starts/2-1] || q.Median > recorded[starts/2] {
		t.Errorf("the records have %d, %.1f at most and %.1f in the middle, the burst says %+v",
			len(recorded), recorded[starts-1], recorded[starts/2], q)
	}
	counted := scrapeFamilies(t, n.metrics)
	count, seconds := counted("fastiov_cold_start_stage_seconds", "image")
	if count != starts || math.Abs(seconds*1000-sum) > 1 {
		t.Errorf("Prometheus reads %d starts with %.1f ms, the records have %.1f ms", count,
			seconds*1000, sum)
	}
	pulls, _ := counted("fastiov_node_image_pull_seconds", "total")
	if pulls != kinds {
		t.Errorf("%d pulls, want %d", pulls, kinds)
	}
	t.Logf("stage image of %d starts: %.1f ms in the middle, %.1f at most, %.0f in all; Prometheus"+
		" reads %.0f; %d pulls", starts, q.Median, q.Max, sum, seconds*1000, pulls)
}

// scrapeFamilies reads /metrics, and returns what looks up a stage of a histogram in it.
func scrapeFamilies(t *testing.T, address string) func(name, stage string) (int, float64) {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return func(name, stage string) (count int, sum float64) {
		for _, m := range families[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "stage" && l.GetValue() == stage {
					count += int(m.GetHistogram().GetSampleCount())
					sum += m.GetHistogram().GetSampleSum()
				}
			}
		}
		return count, sum
	}
}
