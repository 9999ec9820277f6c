package telemetry

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func ended(name string) *Call {
	return &Call{API: "openwhisk", ID: store.NewID(), Function: name, How: pool.Warm, Ran: true}
}

// However many functions are called, the series stay below their bound; a deleted function makes
// place for another.
func TestFunctionsAreCountedByNameAsLongAsThereAreFew(t *testing.T) {
	deleted := map[string]bool{}
	m, err := New(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Of("openwhisk", func(name string) bool { return !deleted[name] })
	for i := range MostFunctions + 10 {
		m.Ended(ended(fmt.Sprintf("guest/f%d", i)))
	}
	series := func() int { return testutil.CollectAndCount(m.activations) }
	most := (MostFunctions + len(APIs)) * len(Statuses)
	if n := series(); n != most {
		t.Errorf("%d series, want %d", n, most)
	}
	counted := func(name string) float64 {
		return testutil.ToFloat64(m.activations.WithLabelValues("openwhisk", name, "success"))
	}
	if n := counted("other"); n != 10 {
		t.Errorf("%v are counted as others, want 10", n)
	}
	deleted["guest/f7"], m.swept = true, time.Time{}
	m.Ended(ended("guest/new"))
	if n := counted("guest/new"); n != 1 || series() != most {
		t.Errorf("%v of the new one in %d series, want 1 in %d", n, series(), most)
	}
}

// The cost of counting a warm call, and of counting and tracing a cold start of fifteen stages.
func BenchmarkEnded(b *testing.B) {
	b.Run("warm", func(b *testing.B) {
		m, err := New(prometheus.NewRegistry(), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		end := ended("guest/hello")
		for b.Loop() {
			m.Ended(end)
		}
	})
	for _, traced := range []bool{false, true} {
		b.Run(fmt.Sprintf("cold traced=%v", traced), func(b *testing.B) {
			b.ReportAllocs()
			provider := sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()),
				sdk.WithIDGenerator(timeline.IDs{}))
			b.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
			m, err := New(prometheus.NewRegistry(), provider.Tracer("bench"))
			if err != nil {
				b.Fatal(err)
			}
			end := ended("guest/hello")
			cold := &coldstart.Record{Driver: "sim", NetPath: "vf", FastIOV: "none", Answered: true,
				Begin: time.Now().Add(-time.Second), End: time.Now()}
			for n, stage := range timeline.Order {
				begin := cold.Begin.Add(time.Duration(n) * 50 * time.Millisecond)
				cold.Spans = append(cold.Spans, timeline.Span{Stage: stage, Begin: begin,
					End: begin.Add(50 * time.Millisecond)})
			}
			cold.Attribute()
			end.Cold, end.How = cold, pool.Cold
			for b.Loop() {
				if m.traces.spent = 0; !traced {
					m.traces.spent = MostTraces
				}
				m.Ended(end)
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
