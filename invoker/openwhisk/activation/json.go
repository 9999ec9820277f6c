package activation

import (
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// A record is written by hand: it is the answer of every blocking call, and reflection would be a
// good part of such a call's cost.

// AppendJSON appends the full form.
func (r *Record) AppendJSON(b []byte) []byte {
	b = r.appendBase(b)
	b = append(b, `,"response":{"status":`...)
	b = quoted(b, r.Response.Status.String())
	b = append(b, `,"success":`...)
	b = strconv.AppendBool(b, r.Response.Status == Success)
	b = append(b, `,"result":`...)
	b = append(b, r.result()...)
	b = append(b, `,"size":`...)
	b = strconv.AppendInt(b, int64(len(r.Response.Result)), 10)
	b = append(b, `},"logs":`...)
	return append(quotedAll(b, r.Logs), '}')
}

// MarshalJSON writes the full form.
func (r *Record) MarshalJSON() ([]byte, error) { return r.AppendJSON(nil), nil }

// AppendSummary appends a list's row.
func (r *Record) AppendSummary(b []byte) []byte {
	b = r.appendBase(b)
	if !r.End.IsZero() {
		b = strconv.AppendInt(append(b, `,"statusCode":`...), int64(r.Response.Status), 10)
	}
	return append(b, '}')
}

// Summary is a list's row.
func (r *Record) Summary() any { return json.RawMessage(r.AppendSummary(nil)) }

// Outcome is the body of GET activations/ID/result.
func (r *Record) Outcome() any {
	return struct {
		Result  json.RawMessage `json:"result"`
		Success bool            `json:"success"`
		Status  string          `json:"status"`
	}{r.result(), r.Response.Status == Success, r.Response.Status.String()}
}

func (r *Record) result() json.RawMessage {
	if len(r.Response.Result) == 0 {
		return json.RawMessage("null")
	}
	return r.Response.Result
}

func (r *Record) appendBase(b []byte) []byte {
	for _, text := range [...]struct{ name, value string }{
		{`{"activationId":`, r.ID}, {`,"namespace":`, r.Namespace}, {`,"name":`, r.Name},
		{`,"version":`, r.Version}, {`,"subject":`, r.Subject},
	} {
		b = quoted(append(b, text.name...), text.value)
	}
	if r.Cause != "" {
		b = quoted(append(b, `,"cause":`...), r.Cause)
	}
	b = strconv.AppendInt(append(b, `,"start":`...), r.Start.UnixMilli(), 10)
	if !r.End.IsZero() {
		b = strconv.AppendInt(append(b, `,"end":`...), r.End.UnixMilli(), 10)
		b = strconv.AppendInt(append(b, `,"duration":`...), r.Duration().Milliseconds(), 10)
	}
	b = append(b, `,"publish":false,"annotations":[`...)
	return append(r.appendAnnotations(b), ']')
}

// appendAnnotations writes the facts about the run that clients may see. A trigger has no kind, and
// ran nothing.
func (r *Record) appendAnnotations(b []byte) []byte {
	b = quoted(append(b, `{"key":"path","value":`...), r.Path)
	if r.Kind == "" {
		return append(b, '}')
	}
	b = quoted(append(b, `},{"key":"kind","value":`...), r.Kind)
	b = r.Limits.append(append(b, `},{"key":"limits","value":`...))
	b = strconv.AppendBool(append(b, `},{"key":"timeout","value":`...), r.TimedOut)
	b = strconv.AppendInt(append(b, `},{"key":"waitTime","value":`...), r.Wait.Milliseconds(), 10)
	if r.CausedBy != "" {
		b = quoted(append(b, `},{"key":"causedBy","value":`...), r.CausedBy)
	}
	if r.Binding != "" {
		b = quoted(append(b, `},{"key":"binding","value":`...), r.Binding)
	}
	if c := r.Composed; c != nil {
		b = strconv.AppendBool(append(b, `},{"key":"topmost","value":`...), c.Topmost)
		if c.Conductor {
			b = append(b, `},{"key":"conductor","value":true`...)
		}
	}
	if r.Cold != nil {
		b = strconv.AppendInt(append(b, `},{"key":"initTime","value":`...),
			r.Init.Milliseconds(), 10)
		cold, err := json.Marshal(r.Cold)
		if err != nil {
			panic(err) // cannot happen: times, texts and numbers other than NaN and infinity
		}
		b = append(append(b, `},{"key":"coldStart","value":`...), cold...)
	}
	return append(b, '}')
}

func (l Limits) append(b []byte) []byte {
	for _, number := range [...]struct {
		name  string
		value int
	}{{`{"timeout":`, l.TimeoutMs}, {`,"memory":`, l.MemoryMB}, {`,"logs":`, l.LogsMB},
		{`,"concurrency":`, l.Concurrency}} {
		b = strconv.AppendInt(append(b, number.name...), int64(number.value), 10)
	}
	return append(b, '}')
}

func quotedAll(b []byte, texts []string) []byte {
	b = append(b, '[')
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = quoted(b, text)
	}
	return append(b, ']')
}

// quoted appends a text; it replaces bytes that are not UTF-8.
func quoted(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text) // its error says that something was replaced
	return b
}
