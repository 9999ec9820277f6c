package openwhisk

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A cold start leaves a trace that has the activation's id, and histograms that lead to it; a warm
// call leaves none.
func TestAColdStartLeavesATrace(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	c := newClientOf(t, Config{Blocking: time.Minute,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute},
		Tracer: sdk.NewTracerProvider(sdk.WithSpanProcessor(seen),
			sdk.WithIDGenerator(timeline.IDs{})).Tracer("test")})
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
