package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// MostTraces bounds how many cold starts of one second leave a trace, and with it the cost of
// tracing. More than that are looked at as a whole, not one by one.
const MostTraces = 500

// A ration counts the traces that are left of this second.
type ration struct {
	mu     sync.Mutex
	second int64
	spent  int
}

func (b *ration) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if second := now.Unix(); second != b.second {
		b.second, b.spent = second, 0
	}
	b.spent++
	return b.spent <= MostTraces
}

// trace hands on the cold start that a call waited for, as a trace whose id is the call's. It
// reports whether it did.
func (m *Metrics) trace(c *Call) bool {
	cold := c.Cold
	if cold == nil || !cold.Answered || m.tracer == nil || !m.traces.take(cold.End) {
		return false
	}
	return timeline.Trace(context.Background(), m.tracer, c.ID, cold.Spans, cold.Begin, cold.End,
		attribute.String("api", c.API),
		attribute.String("function", c.Function), attribute.String("kind", c.Kind),
		attribute.String("status", c.Status.String()),
		attribute.String("sandbox", cold.Sandbox), attribute.String("driver", cold.Driver),
		attribute.String("vf", cold.VF),
		attribute.String("netpath", cold.NetPath), attribute.String("fastiov", cold.FastIOV),
		attribute.Float64("coverage", cold.Coverage))
}
