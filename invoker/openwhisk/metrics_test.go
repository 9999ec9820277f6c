package openwhisk

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func ended(path string) *completion {
	record := &activation.Record{ID: store.NewID(), Path: path, End: time.Now()}
	return &completion{record: record, how: pool.Warm, ran: true}
}

// However many functions are called, the series stay below their bound; a deleted function makes
// place for another.
func TestFunctionsAreCountedByNameAsLongAsThereAreFew(t *testing.T) {
	deleted := map[string]bool{}
	m, err := NewMetrics(prometheus.NewRegistry(), func(name string) bool { return !deleted[name] })
	if err != nil {
		t.Fatal(err)
	}
	for i := range MostFunctions + 10 {
		m.observe(ended(fmt.Sprintf("guest/f%d", i)), false)
	}
	series := func() int { return testutil.CollectAndCount(m.activations) }
	most := (MostFunctions + 1) * (len(activation.Statuses) + 1)
	if n := series(); n != most {
		t.Errorf("%d series, want %d", n, most)
	}
	if n := testutil.ToFloat64(m.activations.WithLabelValues("other", "success")); n != 10 {
		t.Errorf("%v are counted as others, want 10", n)
	}
	deleted["guest/f7"], m.swept = true, time.Time{}
	m.observe(ended("guest/new"), false)
	if n := testutil.ToFloat64(m.activations.WithLabelValues("guest/new", "success")); n != 1 ||
		series() != most {
		t.Errorf("%v of the new one in %d series, want 1 in %d", n, series(), most)
	}
}

// A cold start leaves a trace that has the activation's id, and histograms that lead to it; a warm
// call leaves none.
func TestAColdStartLeavesATrace(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	c := newClient(t)
	c.api.cfg.Tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(seen),
		sdk.WithIDGenerator(timeline.IDs{})).Tracer("test")
	c.put("hello")
	id := c.want(200, c.do("POST", "actions/hello?blocking=true", ""))["activationId"]
	spans := len(seen.Ended())
	if spans < 4 || seen.Ended()[0].SpanContext().TraceID().String() != id {
		t.Fatalf("%d spans, of trace %v; want those of %v", spans,
			seen.Ended()[0].SpanContext().TraceID(), id)
	}
	c.want(200, c.do("POST", "actions/hello?blocking=true", ""))
	if n := len(seen.Ended()); n != spans {
		t.Errorf("the warm call left %d spans", n-spans)
	}
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exemplars := 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "fastiov_cold_start_seconds" &&
				metric.GetHistogram().GetSchema() == 0 {
				t.Error("fastiov_cold_start_seconds has no native buckets")
			}
			for _, b := range metric.GetHistogram().GetBucket() {
				if e := b.GetExemplar(); e != nil && strings.Contains(e.String(), id.(string)) {
					exemplars++
				}
			}
		}
	}
	if exemplars < 4 {
		t.Errorf("%d exemplars name the trace", exemplars)
	}
}

func TestThrottledRequestsAreCounted(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	c.api.metrics.refuse("api", fail(413, "too large"))
	c.api.metrics.refuse("api", fail(404, "nothing there"))
	c.api.metrics.refuse("api", fmt.Errorf("something else"))
	if n := c.counted("fastiov_throttled_requests_total size"); n != 1 {
		t.Errorf("%v were too large, want 1", n)
	}
}

// The cost of counting a warm call, and of counting and tracing a cold start of fifteen stages.
func BenchmarkObserve(b *testing.B) {
	m, err := NewMetrics(prometheus.NewRegistry(), func(string) bool { return true })
	if err != nil {
		b.Fatal(err)
	}
	b.Run("warm", func(b *testing.B) {
		b.ReportAllocs()
		end := ended("guest/hello")
		for b.Loop() {
			m.observe(end, false)
		}
	})
	for _, traced := range []bool{false, true} {
		b.Run(fmt.Sprintf("cold traced=%v", traced), func(b *testing.B) {
			b.ReportAllocs()
			provider := sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()),
				sdk.WithIDGenerator(timeline.IDs{}))
			b.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
			a, end := &API{cfg: Config{Tracer: provider.Tracer("bench")}}, ended("guest/hello")
			cold := &coldstart.Record{Driver: "sim", NetPath: "vf", FastIOV: "none", Answered: true,
				Begin: time.Now().Add(-time.Second), End: time.Now()}
			for n, stage := range timeline.Order {
				begin := cold.Begin.Add(time.Duration(n) * 50 * time.Millisecond)
				cold.Spans = append(cold.Spans, timeline.Span{Stage: stage, Begin: begin,
					End: begin.Add(50 * time.Millisecond)})
			}
			cold.Attribute()
			end.record.Cold, end.how = cold, pool.Cold
			for b.Loop() {
				if a.traces.spent = 0; !traced {
					a.traces.spent = MostTraces
				}
				m.observe(end, a.trace(end.record))
			}
		})
	}
}

func TestTracesAreRationed(t *testing.T) {
	var b ration
	now, kept := time.Unix(1000, 0), 0
	for range MostTraces + 10 {
		if b.take(now) {
			kept++
		}
	}
	if kept != MostTraces || !b.take(now.Add(time.Second)) {
		t.Errorf("%d traces in a second, want %d and more in the next", kept, MostTraces)
	}
}

// A node whose clock was set back makes no histogram's sum fall, which would read as a restart.
func TestASteppedClockLeavesHistogramsWhole(t *testing.T) {
	c := newClient(t)
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		past := time.Now().Add(-time.Hour).UnixNano()
		return &api.RunReply{Status: 200, Body: []byte("{}"), BeginNs: past,
			EndNs: past - int64(time.Minute)}, nil
	}
	c.put("hello")
	for range 2 { // cold, then warm
		record := c.want(200, c.do("POST", "actions/hello?blocking=true", "{}"))
		if record["duration"].(float64) < 0 || record["end"].(float64) < record["start"].(float64) {
			t.Errorf("the record: %v", record)
		}
	}
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, family := range families {
		for _, m := range family.Metric {
			if h := m.GetHistogram(); h != nil && h.GetSampleCount() > 0 {
				seen++
				if h.GetSampleSum() < 0 {
					t.Errorf("%s: the sum is %v", family.GetName(), h.GetSampleSum())
				}
			}
		}
	}
	if seen < 3 {
		t.Errorf("%d histograms were filled", seen)
	}
}
