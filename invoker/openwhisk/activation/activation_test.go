package activation

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

func TestClassify(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, c := range []struct {
		about  string
		http   int
		body   string
		status Status
		result string // a part of it
	}{
		{"an object", 200, `{"a": 1}`, Success, `{"a":1}`},
		{"an array", 200, ` [1, 2] `, Success, `[1,2]`},
		{"an object with an error", 200, `{"error": "no"}`, ApplicationError, `{"error":"no"}`},
		{"an array that mentions one", 200, `["error"]`, Success, `["error"]`},
		{"an error inside", 200, `{"a": {"error": 1}}`, Success, `{"a":{"error":1}}`},
		{"a crash that says why", 502, `{"error": "boom"}`, DeveloperError, `{"error":"boom"}`},
		{"a crash that says something else", 500, `{"a": 1}`, DeveloperError, `exited unexpectedly`},
		{"a scalar", 200, `42`, DeveloperError, `42`},
		{"nothing", 200, ``, DeveloperError, `HTTP 200`},
		{"no JSON", 200, `<html>`, DeveloperError, `html`},
		{"deep JSON", 200, deep, DeveloperError, `HTTP 200`},
		{"too long", 200, `"` + strings.Repeat("x", MaxResult) + `"`, ApplicationError, `exceeded the allowed length`},
	} {
		got := Classify(c.http, []byte(c.body))
		if got.Status != c.status || !strings.Contains(string(got.Result), c.result) ||
			!json.Valid(got.Result) {
			t.Errorf("%s: %s %s", c.about, got.Status, got.Result)
		}
	}
}

func TestClassifyInit(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"syntax"}`: `{"error":"syntax"}`,
		`gibberish`:          `failed to initialize: HTTP 502`,
		``:                   `failed to initialize`,
	} {
		got := ClassifyInit(502, []byte(body))
		if got.Status != DeveloperError || !strings.Contains(string(got.Result), want) {
			t.Errorf("%q: %s %s", body, got.Status, got.Result)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(200, []byte(`{"error":1}`))
	f.Add(502, []byte("\xff{"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		for _, response := range []Response{Classify(status, body), ClassifyInit(status, body)} {
			if _, err := json.Marshal(&Record{Response: response}); err != nil {
				t.Errorf("%d %q gave %q: %v", status, body, response.Result, err)
			}
			if len(response.Result) == 0 {
				t.Errorf("%d %q gave no result", status, body)
			}
		}
	})
}

func record() *Record {
	cold := &coldstart.Record{
		Sandbox: "fn-1", Driver: "sim", Answered: true, Begin: at(0), End: at(100),
		Spans: []timeline.Span{
			{Stage: timeline.Queue, Begin: at(0), End: at(10)},
			{Stage: timeline.AppInit, Begin: at(20), End: at(60)},
			{Stage: timeline.FirstByte, Begin: at(60), End: at(100)},
		},
	}
	cold.Attribute()
	return &Record{
		ID: "beef", Namespace: "guest", Name: "hello", Version: "0.0.1", Subject: "guest",
		Kind: "python:3", Path: "guest/hello",
		Limits: Limits{60_000, 256, 10, 1}, Start: at(20), End: at(100),
		Wait: 20 * time.Millisecond, Init: 40 * time.Millisecond,
		Response: Response{Success, json.RawMessage(`{"a":1}`)}, Logs: []string{"line"}, Cold: cold,
	}
}

func decoded(t *testing.T, v any) map[string]any {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(content, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func annotations(m map[string]any) map[string]any {
	found := map[string]any{}
	for _, a := range m["annotations"].([]any) {
		pair := a.(map[string]any)
		found[pair["key"].(string)] = pair["value"]
	}
	return found
}

func TestFullFormIsOpenWhisks(t *testing.T) {
	m := decoded(t, record())
	for key, want := range map[string]any{
		"namespace": "guest", "name": "hello", "version": "0.0.1", "subject": "guest",
		"publish": false,
		"start":   float64(at(20).UnixMilli()), "end": float64(at(100).UnixMilli()),
		"duration": 80.0,
		"logs":     []any{"line"},
		"response": map[string]any{"status": "success", "success": true, "size": 7.0,
			"result": map[string]any{"a": 1.0}},
	} {
		if !reflect.DeepEqual(m[key], want) {
			t.Errorf("%s is %v, want %v", key, m[key], want)
		}
	}
	notes := annotations(m)
	for key, want := range map[string]any{"kind": "python:3", "path": "guest/hello",
		"timeout": false, "waitTime": 20.0, "initTime": 40.0} {
		if notes[key] != want {
			t.Errorf("annotation %s is %v, want %v", key, notes[key], want)
		}
	}
}

func TestFullFormNamesItsCause(t *testing.T) {
	r := record()
	r.Cause, r.CausedBy, r.Binding, r.Logs = "cafe", "sequence", "guest/mine", []string{"\xff\n\"<"}
	m := decoded(t, r)
	notes := annotations(m)
	if m["cause"] != "cafe" || notes["causedBy"] != "sequence" || notes["binding"] != "guest/mine" {
		t.Errorf("got %v", m)
	}
	if got := m["logs"].([]any)[0]; got != "\ufffd\n\"<" {
		t.Errorf("a line of the log became %q", got)
	}
}

func TestATriggerHasNoKind(t *testing.T) {
	if notes := annotations(decoded(t, &Record{Name: "t", Path: "guest/t"})); len(notes) != 1 {
		t.Errorf("got %v", notes)
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	r := record()
	r.Cold = nil
	var buffer []byte
	b.ReportAllocs()
	for b.Loop() {
		buffer = r.AppendJSON(buffer[:0])
	}
}

func TestColdStartAddsUp(t *testing.T) {
	cold := annotations(decoded(t, record()))["coldStart"].(map[string]any)
	want := map[string]any{"queue": 10.0, "app-init": 40.0, "first-byte": 40.0,
		"unattributed": 10.0}
	if !reflect.DeepEqual(cold["stagesMs"], want) || cold["endToEndMs"] != 100.0 ||
		cold["coverage"] != 0.9 {
		t.Errorf("got %v", cold)
	}
}

func TestWarmActivationHasNoInitTime(t *testing.T) {
	r := record()
	r.Cold = nil
	notes := annotations(decoded(t, r))
	if _, found := notes["initTime"]; found || notes["coldStart"] != nil {
		t.Errorf("got %v", notes)
	}
}

func TestSummaryHasTheStatusAsNumber(t *testing.T) {
	r := record()
	r.Response.Status = DeveloperError
	m := decoded(t, r.Summary())
	if m["statusCode"] != 2.0 || m["response"] != nil || m["logs"] != nil {
		t.Errorf("got %v", m)
	}
}
