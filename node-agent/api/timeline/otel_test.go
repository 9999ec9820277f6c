package timeline

import (
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestTraceKeepsTheTimes(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(seen), sdk.WithIDGenerator(IDs{})).Tracer(
		"test")
	const id = "17f0c1a2b3c4d5e6f708192a3b4c5d6e"

	kept := Trace(t.Context(), tracer, id, []Span{span(VMM, 10, 50), span(GuestBoot, 50, 90)},
		at(0), at(100))

	ended := seen.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans, want the whole and two stages", len(ended))
	}
	whole := ended[2]
	if got := whole.SpanContext().TraceID().String(); got != id || !kept {
		t.Errorf("trace %s, kept: %v; want %s", got, kept, id)
	}
	if !whole.StartTime().Equal(at(0)) || !whole.EndTime().Equal(at(100)) {
		t.Errorf("the whole runs from %v to %v", whole.StartTime(), whole.EndTime())
	}
	vmm := ended[0]
	if vmm.Name() != "vmm" || !vmm.StartTime().Equal(at(10)) || !vmm.EndTime().Equal(at(50)) {
		t.Errorf("first stage is %s from %v to %v", vmm.Name(), vmm.StartTime(), vmm.EndTime())
	}
	if vmm.Parent().SpanID() != whole.SpanContext().SpanID() {
		t.Error("a stage is not a child of the whole")
	}
}

func TestATraceWithoutAnIDGetsOne(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(seen), sdk.WithIDGenerator(IDs{})).Tracer(
		"test")
	for range 2 {
		_, span := tracer.Start(t.Context(), "x")
		span.End()
	}
	a, b := seen.Ended()[0].SpanContext(), seen.Ended()[1].SpanContext()
	if !a.IsValid() || !b.IsValid() || a.TraceID() == b.TraceID() || a.SpanID() == b.SpanID() {
		t.Errorf("%v and %v", a, b)
	}
}
