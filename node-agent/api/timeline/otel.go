package timeline

import (
	"context"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Trace hands the cold start from begin to end to tracer: one span for the whole, a child for every
// stage, at the times they had. If the tracer's provider was made with IDs, the trace has the given
// id, 32 hexadecimal digits. Trace reports whether the trace is kept.
func Trace(ctx context.Context, tracer trace.Tracer, id string, spans []Span, begin, end time.Time,
	about ...attribute.KeyValue) bool {
	if wanted, err := trace.TraceIDFromHex(id); err == nil {
		ctx = context.WithValue(ctx, traceID{}, wanted)
	}
	ctx, whole := tracer.Start(ctx, "cold start", trace.WithTimestamp(begin),
		trace.WithAttributes(about...))
	for _, s := range spans {
		_, stage := tracer.Start(ctx, string(s.Stage), trace.WithTimestamp(s.Begin),
			trace.WithAttributes(attribute.Int64("clock.error_ns", int64(s.Error))))
		stage.End(trace.WithTimestamp(s.End))
	}
	whole.End(trace.WithTimestamp(end))
	return whole.SpanContext().IsSampled()
}

type traceID struct{}

// IDs gives a trace the id that Trace was told: whoever knows an activation knows its trace.
type IDs struct{}

// NewIDs implements sdk/trace.IDGenerator.
func (g IDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, told := ctx.Value(traceID{}).(trace.TraceID)
	for !told && !id.IsValid() {
		id = trace.TraceID(append(half(), half()...))
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdk/trace.IDGenerator.
func (IDs) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	for !id.IsValid() {
		id = trace.SpanID(half())
	}
	return id
}

func half() []byte {
	var b [8]byte
	n := rand.Uint64()
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
	return b[:]
}
