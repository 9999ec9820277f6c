package traces

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// Query serves the requests of Grafana's Jaeger data source: services, operations, a trace by its
// id, and the last traces of a service.
func (s *Store) Query() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/services", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, s.names(func(sp span) string { return sp.service }), "")
	})
	mux.HandleFunc("GET /api/services/{service}/operations",
		func(w http.ResponseWriter, r *http.Request) {
			reply(w, http.StatusOK, s.names(func(sp span) string {
				if sp.service != r.PathValue("service") {
					return ""
				}
				return sp.name
			}), "")
		})
	mux.HandleFunc("GET /api/traces/{id}", func(w http.ResponseWriter, r *http.Request) {
		found := s.find(r.PathValue("id"))
		if found == nil {
			reply(w, http.StatusNotFound, nil,
				"trace not found: it is not kept any more, or its start is not over")
			return
		}
		reply(w, http.StatusOK, []jaegerTrace{*found}, "")
	})
	mux.HandleFunc("GET /api/traces", func(w http.ResponseWriter, r *http.Request) {
		want, err := parse(r.URL.Query())
		if err != nil {
			reply(w, http.StatusBadRequest, nil, err.Error())
			return
		}
		reply(w, http.StatusOK, s.search(want), "")
	})
	return mux
}

// names returns the distinct names of all spans, sorted.
func (s *Store) names(of func(span) string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	for _, t := range s.oldest {
		for _, sp := range t.spans {
			if name := of(sp); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (s *Store) find(id string) *jaegerTrace {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.traces[id]
	if t == nil {
		return nil
	}
	shown := show(t)
	return &shown
}

// A search holds the parameters of /api/traces.
type search struct {
	service, operation string
	from, to           time.Time
	least, most        time.Duration
	limit              int
	tags               map[string]string
}

func parse(q url.Values) (w search, err error) {
	w = search{service: q.Get("service"), operation: q.Get("operation"), limit: 20, to: time.Now()}
	if w.service == "" {
		return w, fmt.Errorf("parameter service is missing")
	}
	if w.operation == "all" {
		w.operation = ""
	}
	micros := func(name string, to *time.Time) {
		if text := q.Get(name); text != "" && err == nil {
			var n int64
			if n, err = strconv.ParseInt(text, 10, 64); err == nil {
				*to = time.UnixMicro(n)
			}
		}
	}
	micros("start", &w.from)
	micros("end", &w.to)
	for name, to := range map[string]*time.Duration{
		"minDuration": &w.least, "maxDuration": &w.most,
	} {
		if text := q.Get(name); text != "" && err == nil {
			*to, err = time.ParseDuration(text)
		}
	}
	if text := q.Get("limit"); text != "" && err == nil {
		w.limit, err = strconv.Atoi(text)
	}
	if text := q.Get("tags"); text != "" && err == nil {
		err = json.Unmarshal([]byte(text), &w.tags)
	}
	return w, err
}

// search returns the newest matching traces, newest first.
func (s *Store) search(want search) []jaegerTrace {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []jaegerTrace{}
	for i := len(s.oldest) - 1; i >= 0 && len(found) < want.limit; i-- {
		if t := s.oldest[i]; want.matches(t) {
			found = append(found, show(t))
		}
	}
	return found
}

func (want search) matches(t *kept) bool {
	root := t.root()
	took := root.end.Sub(root.begin)
	if root.begin.Before(want.from) || root.begin.After(want.to) || took < want.least ||
		want.most > 0 && took > want.most {
		return false
	}
	return slices.ContainsFunc(t.spans, func(sp span) bool {
		if sp.service != want.service || want.operation != "" && sp.name != want.operation {
			return false
		}
		for key, value := range want.tags {
			if !slices.ContainsFunc(sp.about, func(a *commonpb.KeyValue) bool {
				return a.GetKey() == key && fmt.Sprint(valueOf(a)) == value
			}) {
				return false
			}
		}
		return true
	})
}

// Jaeger's JSON.
type (
	jaegerTrace struct {
		TraceID   string                   `json:"traceID"`
		Spans     []jaegerSpan             `json:"spans"`
		Processes map[string]jaegerProcess `json:"processes"`
		Warnings  []string                 `json:"warnings"`
	}
	jaegerSpan struct {
		TraceID       string            `json:"traceID"`
		SpanID        string            `json:"spanID"`
		OperationName string            `json:"operationName"`
		References    []jaegerReference `json:"references"`
		StartTime     int64             `json:"startTime"` // µs
		Duration      int64             `json:"duration"`  // µs
		Tags          []jaegerTag       `json:"tags"`
		Logs          []struct{}        `json:"logs"`
		ProcessID     string            `json:"processID"`
		Warnings      []string          `json:"warnings"`
	}
	jaegerReference struct {
		RefType string `json:"refType"`
		TraceID string `json:"traceID"`
		SpanID  string `json:"spanID"`
	}
	jaegerTag struct {
		Key   string `json:"key"`
		Type  string `json:"type"`
		Value any    `json:"value"`
	}
	jaegerProcess struct {
		ServiceName string      `json:"serviceName"`
		Tags        []jaegerTag `json:"tags"`
	}
)

func show(t *kept) jaegerTrace {
	shown := jaegerTrace{TraceID: t.id, Processes: map[string]jaegerProcess{}}
	spans := slices.Clone(t.spans)
	slices.SortStableFunc(spans, func(a, b span) int { // a whole before its parts
		return cmp.Or(a.begin.Compare(b.begin), cmp.Compare(a.parent, b.parent))
	})
	for _, sp := range spans {
		shown.Processes[sp.service] = jaegerProcess{ServiceName: sp.service, Tags: []jaegerTag{}}
		js := jaegerSpan{
			TraceID: t.id, SpanID: sp.id, OperationName: sp.name, References: []jaegerReference{},
			StartTime: sp.begin.UnixMicro(),
			Duration:  sp.end.Sub(sp.begin).Microseconds(), Tags: []jaegerTag{}, Logs: []struct{}{},
			ProcessID: sp.service,
		}
		if sp.parent != "" {
			js.References = append(js.References, jaegerReference{"CHILD_OF", t.id, sp.parent})
		}
		for _, a := range sp.about {
			js.Tags = append(js.Tags, tag(a))
		}
		shown.Spans = append(shown.Spans, js)
	}
	return shown
}

func tag(a *commonpb.KeyValue) jaegerTag {
	kind, value := "string", valueOf(a)
	switch value.(type) {
	case int64:
		kind = "int64"
	case float64:
		kind = "float64"
	case bool:
		kind = "bool"
	}
	return jaegerTag{a.GetKey(), kind, value}
}

func valueOf(a *commonpb.KeyValue) any {
	switch v := a.GetValue().GetValue().(type) {
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return v.DoubleValue
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	}
	return a.GetValue().GetStringValue()
}

func reply(w http.ResponseWriter, status int, data any, complaint string) {
	type failure struct {
		Code int    `json:"code"`
		Msg  string `json:"msg"`
	}
	answer := struct {
		Data   any       `json:"data"`
		Total  int       `json:"total"`
		Limit  int       `json:"limit"`
		Offset int       `json:"offset"`
		Errors []failure `json:"errors"`
	}{Data: data}
	if complaint != "" {
		answer.Errors = []failure{{status, complaint}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // if the caller has gone, there is nobody to answer
}
