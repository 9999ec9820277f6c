package timeline

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Trace hands the cold start from begin to end to tracer: one span for the whole, a child for every stage, at the times they had.
func Trace(ctx context.Context, tracer trace.Tracer, spans []Span, begin, end time.Time, about ...attribute.KeyValue) {
	ctx, whole := tracer.Start(ctx, "cold start", trace.WithTimestamp(begin), trace.WithAttributes(about...))
	for _, s := range spans {
		_, stage := tracer.Start(ctx, string(s.Stage), trace.WithTimestamp(s.Begin),
			trace.WithAttributes(attribute.Int64("clock.error_ns", int64(s.Error))))
		stage.End(trace.WithTimestamp(s.End))
	}
	whole.End(trace.WithTimestamp(end))
}
