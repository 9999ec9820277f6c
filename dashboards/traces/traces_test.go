package traces

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func serve(t *testing.T, s *Store) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/traces", s.Collect())
	mux.Handle("GET /api/", s.Query())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

type answer struct {
	Data   []jaegerTrace
	Errors []struct{ Msg string }
}

func get(t *testing.T, url string, want int) (a answer) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		t.Fatalf("%s: HTTP %d, want %d", url, resp.StatusCode, want)
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

const id = "17f0c1a2b3c4d5e6f708192a3b4c5d6e"

// TestAColdStartIsFound sends a cold start with OpenTelemetry's own exporter and looks it up as
// Grafana does.
func TestAColdStartIsFound(t *testing.T) {
	s := New(100)
	server := serve(t, s)
	exporter, err := otlptracehttp.New(t.Context(),
		otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter), sdk.WithIDGenerator(timeline.IDs{}))
	begin := time.Now().Add(-time.Second).Truncate(time.Microsecond)
	timeline.Trace(t.Context(), provider.Tracer("test"), id, []timeline.Span{
		{Stage: timeline.VMM, Begin: begin, End: begin.Add(300 * time.Millisecond)},
		{Stage: timeline.GuestBoot, Begin: begin.Add(300 * time.Millisecond), End: begin.Add(time.Second)},
	}, begin, begin.Add(time.Second))
	if err := provider.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}

	found := get(t, server.URL+"/api/traces/"+id, 200).Data
	if len(found) != 1 || len(found[0].Spans) != 3 {
		t.Fatalf("%+v", found)
	}
	whole, vmm := found[0].Spans[0], found[0].Spans[1]
	if whole.OperationName != "cold start" || whole.StartTime != begin.UnixMicro() ||
		whole.Duration != 1_000_000 || len(whole.References) != 0 {
		t.Errorf("%+v", whole)
	}
	if vmm.OperationName != "vmm" || vmm.Duration != 300_000 ||
		vmm.References[0].SpanID != whole.SpanID {
		t.Errorf("%+v", vmm)
	}
	service := found[0].Processes[whole.ProcessID].ServiceName
	for query, want := range map[string]int{
		"": 1, "&operation=vmm": 1, "&operation=nothing": 0, "&minDuration=2s": 0,
		"&maxDuration=2s": 1, `&tags={"clock.error_ns":"0"}`: 1, "&limit=0": 0,
	} {
		if n := len(get(t, server.URL+"/api/traces?service="+service+query, 200).Data); n != want {
			t.Errorf("%q finds %d, want %d", query, n, want)
		}
	}
	get(t, server.URL+"/api/traces?service=x&minDuration=long", 400)
	if a := get(t, server.URL+"/api/traces/"+strings.Repeat("0", 32), 404); len(a.Errors) != 1 {
		t.Errorf("%+v", a)
	}
	for path, want := range map[string]string{
		"services": service, "services/" + service + "/operations": "cold start",
	} {
		resp, err := http.Get(server.URL + "/api/" + path)
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(content), want) {
			t.Errorf("%s: %s", path, content)
		}
	}
}

func TestTheOldestTracesGo(t *testing.T) {
	s := New(10)
	exporter := sdk.NewTracerProvider(sdk.WithIDGenerator(timeline.IDs{}),
		sdk.WithSyncer(otlp(t, s)))
	ids := []string{}
	for i := range 6 {
		ids = append(ids, strings.Repeat("0", 30)+"1"+string(rune('0'+i)))
		timeline.Trace(t.Context(), exporter.Tracer("t"), ids[i],
			[]timeline.Span{{Stage: timeline.VMM, Begin: time.Now(), End: time.Now()}},
			time.Now(), time.Now())
	}
	if s.spans > 10 || s.find(ids[0]) != nil || s.find(ids[5]) == nil ||
		len(s.oldest) != len(s.traces) {
		t.Errorf("%d spans, %d traces", s.spans, len(s.traces))
	}
}

func TestASpanThatIsTooLargeIsLeftOut(t *testing.T) {
	s := New(10)
	exporter := sdk.NewTracerProvider(sdk.WithSyncer(otlp(t, s)))
	_, span := exporter.Tracer("t").Start(t.Context(), strings.Repeat("x", mostOfSpan))
	span.End()
	if s.spans != 0 {
		t.Errorf("%d spans", s.spans)
	}
}

func otlp(t *testing.T, s *Store) sdk.SpanExporter {
	t.Helper()
	exporter, err := otlptracehttp.New(t.Context(),
		otlptracehttp.WithEndpointURL(serve(t, s).URL+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	return exporter
}

func TestWhatIsNoTraceIsRefused(t *testing.T) {
	bomb := &bytes.Buffer{}
	zip := gzip.NewWriter(bomb)
	_, _ = zip.Write(make([]byte, mostBytes+2))
	zip.Close()
	for _, c := range []struct {
		kind, encoding, body string
		want                 int
	}{
		{"application/json", "", "{}", 415},
		{"application/x-protobuf", "", "\xff\xff\xff", 400},
		{"application/x-protobuf", "gzip", "no gzip", 400},
		{"application/x-protobuf", "", strings.Repeat("x", mostBytes+1), 413},
		{"application/x-protobuf", "gzip", bomb.String(), 413},
		{"application/x-protobuf", "", "", 200},
	} {
		if got := post(New(10), c.kind, c.encoding, []byte(c.body)); got != c.want {
			t.Errorf("%s %s of %d bytes: HTTP %d, want %d",
				c.kind, c.encoding, len(c.body), got, c.want)
		}
	}
}

func post(s *Store, kind, encoding string, body []byte) int {
	r := httptest.NewRequest("POST", "/v1/traces", bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Content-Encoding", encoding)
	w := httptest.NewRecorder()
	s.Collect().ServeHTTP(w, r)
	return w.Code
}

// Every input is accepted or refused, and what was accepted can be shown.
func FuzzCollect(f *testing.F) {
	f.Add([]byte("\x0a\x02\x12\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := New(100)
		if status := post(s, "application/x-protobuf", "", body); status != 200 && status != 400 {
			t.Errorf("HTTP %d", status)
		}
		for id := range s.traces {
			if _, err := json.Marshal(s.find(id)); err != nil {
				t.Error(err)
			}
		}
		if s.spans > 100 {
			t.Errorf("%d spans are kept", s.spans)
		}
	})
}

// The cost of a span: to add, and to keep.
func BenchmarkAdd(b *testing.B) {
	collected := &collector{}
	tracer := sdk.NewTracerProvider(sdk.WithSyncer(collected.exporter(b)),
		sdk.WithIDGenerator(timeline.IDs{})).Tracer("t")
	stages := make([]timeline.Span, 14)
	s, heap := New(64<<10), func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for b.Loop() {
		for i := range stages {
			stages[i] = timeline.Span{Stage: timeline.Order[i], Begin: time.Now(), End: time.Now()}
		}
		collected.batches = nil
		timeline.Trace(context.Background(), tracer, activation(), stages, time.Now(), time.Now())
		s.Add(collected.batches)
	}
	b.ReportMetric(float64(heap()-before)/float64(s.spans), "B/span")
	runtime.KeepAlive(s)
}

func activation() string {
	id, _ := timeline.IDs{}.NewIDs(context.Background())
	return id.String()
}

// A collector keeps the output of OpenTelemetry's exporter.
type collector struct{ batches []*tracepb.ResourceSpans }

func (c *collector) exporter(b *testing.B) sdk.SpanExporter {
	exporter, err := otlptrace.New(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	return exporter
}

func (c *collector) Start(context.Context) error { return nil }
func (c *collector) Stop(context.Context) error  { return nil }
func (c *collector) UploadTraces(_ context.Context, batches []*tracepb.ResourceSpans) error {
	c.batches = append(c.batches, batches...)
	return nil
}

// The bound of a span holds for its service's name as well.
func TestAServicesNameIsCut(t *testing.T) {
	s := New(10)
	name := strings.Repeat("é", 1<<20)
	attribute := &commonpb.KeyValue{Key: "service.name", Value: &commonpb.AnyValue{
		Value: &commonpb.AnyValue_StringValue{StringValue: name}}}
	s.Add([]*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{attribute}},
		ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{
			{TraceId: make([]byte, 16), SpanId: make([]byte, 8)},
		}}},
	}})
	got := s.oldest[0].spans[0].service
	if len(got) > mostOfService || !strings.HasPrefix(name, got) || got == "" {
		t.Errorf("%d bytes are kept, %q", len(got), got[:min(len(got), 300)])
	}
}
