package message

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

const id = "0123456789abcdef0123456789abcdef"

// asked is an ActivationMessage as a controller writes it, of an action in a bound package, run as
// a step of a sequence.
const asked = `{"transid":["t1",1700000000000,true,["t0",1699999999000]],
 "action":{"path":"ns/pkg","name":"hello","version":"0.0.3","binding":"guest/bound"},"revision":"2-abc",
 "user":{"subject":"guest","namespace":{"name":"guest","uuid":"23bc46b1-71f6-4ed5-8c54-816aa4f8c502"},
  "authkey":{"api_key":"23bc46b1:123zO3"},"rights":["READ","ACTIVATE"],"limits":{"storeActivations":false}},
 "activationId":"` + id + `","rootControllerIndex":{"asString":"0","instanceType":"controller"},"blocking":true,
 "content":{"name":"<b>&"},"initArgs":["secret"],"lockedArgs":{"secret":"aes-256"},"cause":"fedcba9876543210fedcba9876543210","traceContext":{"a":"b"}}`

func record() *activation.Record {
	start := time.UnixMilli(1700000000500)
	return &activation.Record{
		ID: id, Namespace: "guest", Name: "hello", Version: "0.0.3", Subject: "guest",
		Kind: "nodejs:20", Path: "ns/pkg/hello",
		Limits: activation.Limits{TimeoutMs: 60000, MemoryMB: 256, LogsMB: 10, Concurrency: 1},
		Start:  start, End: start.Add(7 * time.Millisecond), Wait: 500 * time.Millisecond,
		Response: activation.Response{Result: json.RawMessage(`{"m":"<b>&"}`)},
		Logs:     []string{"a line"},
	}
}

func decode(t *testing.T, text string) *Activation {
	t.Helper()
	a, err := DecodeActivation([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnActivationIsReadWhole(t *testing.T) {
	a := decode(t, asked)
	if got := a.Transaction.Start.UnixMilli(); a.Transaction.ID != "t1" || got != 1700000000000 {
		t.Errorf("transaction %s at %d", a.Transaction.ID, got)
	}
	if a.Action.String() != "ns/pkg/hello" || a.Action.Version != "0.0.3" ||
		a.Action.Binding != "guest/bound" || a.Revision != "2-abc" {
		t.Errorf("action %+v, revision %q", a.Action, a.Revision)
	}
	if a.User.Namespace.Name != "guest" || a.User.AuthKey.APIKey != "23bc46b1:123zO3" ||
		a.User.Stores() {
		t.Errorf("user %+v", a.User)
	}
	if string(a.Content) != `{"name":"<b>&"}` ||
		!reflect.DeepEqual(a.InitArgs, []string{"secret"}) || a.LockedArgs["secret"] != "aes-256" {
		t.Errorf("content %s, init %v, locked %v", a.Content, a.InitArgs, a.LockedArgs)
	}
	if !a.Blocking || a.Controller.Name != "0" || a.Cause == "" {
		t.Errorf("%+v", a)
	}
}

// The health test action comes without revision, version, content or rights.
func TestTheLeastOfAnActivationIsEnough(t *testing.T) {
	a := decode(t, `{"transid":["sid_invokerHealthActivation",1],"action":{"path":"whisk.system","name":"invokerHealthTestAction0"},"revision":null,
	 "user":{"subject":"whisk.system","namespace":{"name":"whisk.system","uuid":"u"},"authkey":{}},"activationId":"`+id+`",
	 "rootControllerIndex":{"asString":"0"},"blocking":false}`)
	if a.Revision != "" || a.Blocking || len(a.Content) > 0 || !a.User.Stores() {
		t.Errorf("%+v", a)
	}
}

func TestWhatNobodyCanBeToldOfIsAnError(t *testing.T) {
	for name, change := range map[string][2]string{
		"no JSON":                  {`{"transid"`, `{transid`},
		"no activation":            {`"activationId":"` + id + `",`, ``},
		"a path as activation":     {`"activationId":"` + id, `"activationId":"../` + id},
		"no controller":            {`{"asString":"0","instanceType":"controller"}`, `{}`},
		"no topic of a controller": {`"asString":"0"`, `"asString":"0 1/2"`},
		"no action":                {`"name":"hello"`, `"name":""`},
		"no namespace":             {`"name":"guest","uuid"`, `"uuid"`},
		"no transaction":           {`"transid"`, `"transit"`},
		"a number for an action":   {`{"path":"ns/pkg","name":"hello","version":"0.0.3","binding":"guest/bound"}`, `7`},
	} {
		broken := strings.Replace(asked, change[0], change[1], 1)
		if broken == asked {
			t.Fatalf("%s: nothing was changed", name)
		}
		if a, err := DecodeActivation([]byte(broken)); err == nil {
			t.Errorf("%s: read as %+v", name, a)
		}
	}
}

func TestATransactionThatCannotBeReadIsCalledUnknown(t *testing.T) {
	for _, given := range []string{`7`, `[]`, `["a"]`, `[1,2]`, `["a","b"]`, `{}`} {
		a := decode(t, strings.Replace(asked, `["t1",1700000000000,true,["t0",1699999999000]]`,
			given, 1))
		if a.Transaction.ID != "sid_unknown" || time.Since(a.Transaction.Start) > time.Minute {
			t.Errorf("%s: %+v", given, a.Transaction)
		}
	}
	future := decode(t, strings.Replace(asked, "1700000000000", "9700000000000", 1))
	if future.Transaction.ID != "t1" || time.Since(future.Transaction.Start) < 0 {
		t.Errorf("a start in the future: %+v", future.Transaction)
	}
}

// The outgoing messages, letter by letter.
func TestGolden(t *testing.T) {
	a, by := decode(t, asked), NewInvoker(3, 1024)
	stored := NewRecord(record(), a)
	const (
		invoker  = `{"instance":3,"userMemory":"1024 MB","instanceType":"invoker","tags":[],"dedicatedNamespaces":[]}`
		transid  = `"transid":["t1",1700000000000,true,["t0",1699999999000]]`
		response = `{"namespace":"guest","name":"hello","subject":"guest","activationId":"` + id +
			`","start":1700000000500,"end":1700000000507,` +
			`"cause":"fedcba9876543210fedcba9876543210","response":{"statusCode":0,"result":{"m":"<b>&"},"size":12},"logs":[],"version":"0.0.3","publish":false,` +
			`"annotations":[{"key":"path","value":"ns/pkg/hello"},{"key":"kind","value":"nodejs:20"},` +
			`{"key":"limits","value":{"timeout":60000,"memory":256,"logs":10,"concurrency":1}},{"key":"timeout","value":false},{"key":"waitTime","value":500},` +
			`{"key":"causedBy","value":"sequence"},{"key":"binding","value":"guest/bound"}],"duration":7}`
	)
	for want, message := range map[string]any{
		`{"name":` + invoker +
			`,"isEnabled":true}`: Ping{by, true},
		`{` + transid + `,"response":` + response +
			`}`: Result(a.Transaction, stored),
		`{` + transid + `,"response":"` + id +
			`"}`: Result(a.Transaction, stored).Shrunk(),
		`{` + transid + `,"activationId":"` + id + `","isSystemError":false,"instance":` + invoker +
			`}`: Completion(a.Transaction, stored, by),
		`{` + transid + `,"response":` + response + `,"isSystemError":false,"instance":` + invoker +
			`}`: Combined(a.Transaction, stored, by),
		`{` + transid + `,"response":"` + id + `","isSystemError":false,"instance":` + invoker +
			`}`: Combined(a.Transaction, stored, by).Shrunk(),
		strings.Replace(response, `"logs":[]`, `"logs":["a line"]`, 1): stored,
		`["sid_invokerHealth",5]`: NewTransaction(
			"sid_invokerHealth", time.UnixMilli(5)),
		`{"key":{"mainId":"ns/a","secondaryId":"1-a"},"instanceId":"controller0"}`: invalidation(t,
			`{"key":{"mainId":"ns/a","secondaryId":"1-a"},"instanceId":"controller0"}`),
		`{"source":"invoker3","body":{"name":"ns/pkg/hello","activationId":"` + id +
			`","statusCode":0,"duration":7,"waitTime":500,"initTime":0,` +
			`"kind":"nodejs:20","conductor":false,"memory":256,"causedBy":"sequence","size":12},"subject":"guest","namespace":"guest",` +
			`"userId":"23bc46b1-71f6-4ed5-8c54-816aa4f8c502","eventType":"Activation",` +
			`"timestamp":9}`: NewEvent(record(), a, by, time.UnixMilli(9)),
	} {
		if got := string(Encode(message)); got != want {
			t.Errorf("%T\n got %s\nwant %s", message, got, want)
		}
	}
}

func invalidation(t *testing.T, text string) Invalidation {
	t.Helper()
	i, err := DecodeInvalidation([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestAColdStartTellsItsInitTime(t *testing.T) {
	r := record()
	r.Cold, r.Init = &coldstart.Record{}, 30*time.Millisecond
	if text := string(Encode(NewRecord(r, decode(t, asked)))); !strings.Contains(text,
		`{"key":"initTime","value":30}`) {
		t.Error(text)
	}
}

func TestAnEventTellsTheStatusThatTheUserGave(t *testing.T) {
	for result, want := range map[string]int{
		`{"statusCode":201}`:                            201,
		`{"error":{"statusCode":404}}`:                  404,
		`{"statusCode":200,"error":{"statusCode":404}}`: 404,
		`{"statusCode":"x"}`:                            400,
		`{}`:                                            -1,
		`[1]`:                                           -1,
		`{"error":"no"}`:                                -1,
	} {
		got := -1
		if code := userStatus(json.RawMessage(result)); code != nil {
			got = *code
		}
		if got != want {
			t.Errorf("%s: %d, want %d", result, got, want)
		}
	}
}

func TestAcksAreToldApart(t *testing.T) {
	a := decode(t, asked)
	for _, sent := range []Ack{
		Result(a.Transaction, NewRecord(record(), a)),
		Completion(a.Transaction, NewRecord(record(), a), NewInvoker(0, 1)),
		Combined(a.Transaction, NewRecord(record(), a), NewInvoker(0, 1)).Shrunk(),
	} {
		got, err := DecodeAck(Encode(sent))
		if err != nil || !reflect.DeepEqual(generic(t, got), generic(t, sent)) {
			t.Errorf("%v\n got %s\nwant %s", err, Encode(got), Encode(sent))
		}
	}
	for _, broken := range []string{`{}`, `[]`, `{"activationId":"a"}`,
		`{"instance":{"instanceType":"controller"},"activationId":"a"}`, `{"response":7}`} {
		if got, err := DecodeAck([]byte(broken)); err == nil {
			t.Errorf("%s: read as %+v", broken, got)
		}
	}
}

// generic is the message without the order of its keys.
func generic(t *testing.T, message any) (v any) {
	t.Helper()
	if err := json.Unmarshal(Encode(message), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func FuzzActivation(f *testing.F) {
	f.Add([]byte(asked))
	f.Add([]byte(`{"transid":7}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeActivation(b)
		if err != nil {
			return
		}
		stored := NewRecord(record(), a)
		again, err := DecodeAck(Encode(Combined(a.Transaction, stored, NewInvoker(0, 128))))
		if err != nil || again.Response.ID != id || again.Transaction.ID != a.Transaction.ID {
			t.Errorf("the acknowledgement of %q cannot be read: %v %+v", b, err, again)
		}
		if _, err := DecodeActivation(Encode(a)); err != nil {
			t.Errorf("what was read from %q and written again cannot be read: %v", b, err)
		}
	})
}

func FuzzInvalidation(f *testing.F) {
	f.Add([]byte(`{"key":{"mainId":"ns/a"},"instanceId":"controller0"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if i, err := DecodeInvalidation(b); err == nil && i.Key.Main == "" {
			t.Errorf("%q has no id", b)
		}
	})
}
