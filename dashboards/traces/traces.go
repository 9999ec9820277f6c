// Package traces is a small store of traces: the last cold starts, in memory, taken by OTLP and shown by Jaeger's query API, which Grafana
// speaks with its own Jaeger data source.
//
// It is there so that every installation has somewhere to look a trace up, also one without containers. It keeps nothing over a restart and
// searches by looking at everything; whoever wants more points OTEL_EXPORTER_OTLP_ENDPOINT at Jaeger or Tempo instead.
//
//	traces.go   what is kept, and what goes when there is too much
//	collect.go  OTLP over HTTP, in
//	query.go    Jaeger's JSON, out
package traces

import (
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Store keeps the spans that came last. It may be used by any number of goroutines.
type Store struct {
	most   int
	mu     sync.Mutex
	spans  int
	traces map[string]*kept
	oldest []*kept // by arrival of their first span
}

// kept is one trace.
type kept struct {
	id    string
	spans []span
}

// A span is what is shown of one.
type span struct {
	id, parent string
	service    string
	name       string
	begin, end time.Time
	about      []*commonpb.KeyValue
}

// New returns a store of at most that many spans; whole traces go, the oldest first, when more come.
func New(spans int) *Store {
	return &Store{most: spans, traces: map[string]*kept{}}
}

// mostOfSpan bounds what is kept of one, in bytes; ours have some hundred.
const mostOfSpan = 8 << 10

// Add takes spans as OTLP carries them. One without valid ids, which nobody could find, and one that is too large are left out.
func (s *Store) Add(batches []*tracepb.ResourceSpans) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range batches {
		service := "unknown"
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, sp := range scope.GetSpans() {
				if len(sp.GetTraceId()) == 16 && len(sp.GetSpanId()) == 8 && proto.Size(sp) <= mostOfSpan {
					s.add(service, sp)
				}
			}
		}
	}
	for s.spans > s.most && len(s.oldest) > 0 {
		first := s.oldest[0]
		s.oldest = slices.Delete(s.oldest, 0, 1)
		s.spans -= len(first.spans)
		delete(s.traces, first.id)
	}
}

func (s *Store) add(service string, sp *tracepb.Span) {
	id := hex.EncodeToString(sp.GetTraceId())
	t := s.traces[id]
	if t == nil {
		t = &kept{id: id}
		s.traces[id] = t
		s.oldest = append(s.oldest, t)
	}
	t.spans = append(t.spans, span{
		id: hex.EncodeToString(sp.GetSpanId()), parent: hex.EncodeToString(sp.GetParentSpanId()), service: service, name: sp.GetName(),
		begin: time.Unix(0, int64(sp.GetStartTimeUnixNano())), end: time.Unix(0, int64(sp.GetEndTimeUnixNano())), about: sp.GetAttributes(),
	})
	s.spans++
}

// Start, Stop and UploadTraces make the store a client of otlptrace, so that a process can keep its own traces.
func (s *Store) Start(context.Context) error { return nil }

// Stop is there for otlptrace.
func (s *Store) Stop(context.Context) error { return nil }

// UploadTraces is Add, for otlptrace.
func (s *Store) UploadTraces(_ context.Context, batches []*tracepb.ResourceSpans) error {
	s.Add(batches)
	return nil
}

// root is the span that stands for the trace: the one without a parent, or the first to begin.
func (t *kept) root() span {
	first := t.spans[0]
	for _, sp := range t.spans {
		if sp.parent == "" {
			return sp
		}
		if sp.begin.Before(first.begin) {
			first = sp
		}
	}
	return first
}
