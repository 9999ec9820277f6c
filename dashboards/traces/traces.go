// Package traces is a small store of traces. It holds the last cold starts in memory, receives them
// by OTLP, and serves Jaeger's query API, which Grafana's Jaeger data source uses.
//
// With it, every installation can look up a trace, also without containers. It keeps nothing over a
// restart, and a search looks at every trace. For more, point OTEL_EXPORTER_OTLP_ENDPOINT at Jaeger
// or Tempo.
//
//	traces.go   keeps spans, and drops traces when there are too many
//	collect.go  OTLP over HTTP, in
//	query.go    Jaeger's JSON, out
package traces

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Store keeps the newest spans. Any number of goroutines may use it.
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

// A span holds the fields of a span that are shown.
type span struct {
	id, parent string
	service    string
	name       string
	begin, end time.Time
	about      []*commonpb.KeyValue
}

// New returns a store of at most that many spans. When more come, it drops whole traces, oldest
// first.
func New(spans int) *Store {
	return &Store{most: spans, traces: map[string]*kept{}}
}

// mostOfSpan bounds the bytes that are kept of one span; ours have some hundred.
const mostOfSpan = 8 << 10

// mostOfService bounds the bytes that are kept of a service's name, which each of its spans holds.
const mostOfService = 256

// Add adds spans in OTLP's form. It leaves out a span without valid ids, which no search could
// find, and a span that is too large.
func (s *Store) Add(batches []*tracepb.ResourceSpans) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range batches {
		service := "unknown"
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = cut(a.GetValue().GetStringValue())
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, sp := range scope.GetSpans() {
				if len(sp.GetTraceId()) == 16 && len(sp.GetSpanId()) == 8 &&
					proto.Size(sp) <= mostOfSpan {
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

// cut returns a service's name, or as much of it as is kept.
func cut(name string) string {
	if len(name) <= mostOfService {
		return name
	}
	return strings.Clone(strings.ToValidUTF8(name[:mostOfService], ""))
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
		id: hex.EncodeToString(sp.GetSpanId()), parent: hex.EncodeToString(sp.GetParentSpanId()),
		service: service, name: sp.GetName(),
		begin: time.Unix(0, int64(sp.GetStartTimeUnixNano())),
		end:   time.Unix(0, int64(sp.GetEndTimeUnixNano())), about: sp.GetAttributes(),
	})
	s.spans++
}

// Start, Stop and UploadTraces make the store a client of otlptrace, so that a process can keep its
// own traces.
func (s *Store) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (s *Store) Stop(context.Context) error { return nil }

// UploadTraces is Add for otlptrace.
func (s *Store) UploadTraces(_ context.Context, batches []*tracepb.ResourceSpans) error {
	s.Add(batches)
	return nil
}

// root returns the span that represents the trace: the one without a parent, or the first to begin.
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
