package openwhisk

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

func notes(m map[string]any) map[string]any {
	found := map[string]any{}
	for _, a := range m["annotations"].([]any) {
		pair := a.(map[string]any)
		found[pair["key"].(string)] = pair["value"]
	}
	return found
}

func TestBlockingInvokeStartsColdThenWarm(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	got := c.do("POST", "actions/hello?blocking=true", `{"name":"you"}`)
	m := c.want(200, got)
	if m["activationId"] != got.Header.Get("x-openwhisk-activation-id") {
		t.Error("the header names another activation")
	}
	response := m["response"].(map[string]any)
	if response["success"] != true || response["result"].(map[string]any)["name"] != "you" {
		t.Errorf("response: %v", response)
	}
	if logs := fmt.Sprint(m["logs"]); !strings.Contains(logs, "stdout: started") ||
		!strings.Contains(logs, "stderr: ran") {
		t.Errorf("logs: %s", logs)
	}
	cold := notes(m)["coldStart"].(map[string]any)
	if cold["driver"] != "sim" || cold["vf"] != "0000:01:10.0" || cold["answered"] != true {
		t.Errorf("cold start: %v", cold)
	}
	sum := 0.0
	for _, ms := range cold["stagesMs"].(map[string]any) {
		sum += ms.(float64)
	}
	if whole := cold["endToEndMs"].(float64); sum < whole-0.01 || sum > whole+0.01 {
		t.Errorf("stages sum to %v of %v", sum, whole)
	}

	warm := notes(c.want(200, c.do("POST", "actions/hello?blocking=true", "")))
	if _, found := warm["initTime"]; found || warm["coldStart"] != nil {
		t.Errorf("the second was cold: %v", warm)
	}
	for series, want := range map[string]float64{
		"fastiov_cold_start_seconds openwhisk  vf sim":                  1,
		"fastiov_cold_start_coverage_ratio openwhisk  vf sim":           1,
		"fastiov_activations_total openwhisk guest/hello success":       2,
		"fastiov_cold_start_stage_seconds openwhisk  vf sim queue":      1,
		"fastiov_cold_start_stage_seconds openwhisk  vf sim first-byte": 1,
		"fastiov_pool_waiting_jobs vf":                                  0,
		"fastiov_activation_seconds openwhisk guest/hello warm":         1,
		"fastiov_activation_seconds openwhisk guest/hello cold":         1,
	} {
		if n := c.counted(series); n != want {
			t.Errorf("%s is %v, want %v", series, n, want)
		}
	}
}

func TestBareResultAndArray(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	if got := c.do("POST", "actions/hello?blocking=true&result=true",
		`{"a":1}`); got.StatusCode != 200 || string(got.body) != `{"a":1}` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return reply(200, "[1]"), nil
	}
	if got := c.do("POST", "actions/hello?blocking=true", ""); got.StatusCode != 200 ||
		string(got.body) != `[1]` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
}

func TestNonBlockingInvokeIsFoundLater(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	gate := make(chan struct{})
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		<-gate
		return reply(200, `{"done":true}`), nil
	}
	id := c.want(202, c.do("POST", "actions/hello", "{}"))["activationId"].(string)
	c.want(404, c.do("GET", "activations/"+id, ""))
	late := c.want(202, c.do("POST", "actions/hello?blocking=true&timeout=1", "{}"))
	if late["activationId"] == "" {
		t.Errorf("a call that waited in vain got %v", late)
	}
	close(gate)
	c.api.running.Wait()

	if m := c.want(200, c.do("GET", "activations/"+id, "")); m["name"] != "hello" {
		t.Errorf("record: %v", m)
	}
	if m := c.want(200, c.do("GET", "activations/"+id+"/result", "")); m["success"] != true ||
		m["status"] != "success" {
		t.Errorf("result: %v", m)
	}
	if m := c.want(200, c.do("GET", "activations/"+id+"/logs", "")); len(m["logs"].([]any)) != 2 {
		t.Errorf("logs: %v", m)
	}
	var rows []map[string]any
	if err := json.Unmarshal(c.do("GET", "activations?name=hello&limit=30", "").body,
		&rows); err != nil || len(rows) != 2 || rows[0]["statusCode"] != 0.0 {
		t.Errorf("list: %v %v", rows, err)
	}
	if err := json.Unmarshal(c.do("GET", "activations?docs=true&limit=1", "").body,
		&rows); err != nil || rows[0]["response"] == nil {
		t.Errorf("full list: %v %v", rows, err)
	}
}

func TestOutcomes(t *testing.T) {
	type start = func(*api.StartRequest) (*api.StartReply, error)
	type run = func(context.Context, *api.RunRequest) (*api.RunReply, error)
	startFails := func(code codes.Code, why string) start {
		return func(*api.StartRequest) (*api.StartReply, error) {
			return nil, status.Error(code, why)
		}
	}
	runFails := func(code codes.Code, why string) run {
		return func(context.Context, *api.RunRequest) (*api.RunReply, error) {
			return nil, status.Error(code, why)
		}
	}
	answers := func(code int32, body string) run {
		return func(context.Context, *api.RunRequest) (*api.RunReply, error) {
			return reply(code, body), nil
		}
	}
	for _, o := range []struct {
		about  string
		start  start
		run    run
		status int
		says   string
		label  string
		kept   bool
	}{
		{"application error", nil, answers(200, `{"error":"no"}`), 502, `"application error"`, "application error", true},
		{"crash", nil, answers(400, `{"error":"command exited"}`), 502, "command exited", "action developer error", false},
		{"nonsense", nil, answers(200, "nonsense"), 502, "valid response", "action developer error", false},
		{"too slow", nil, runFails(codes.DeadlineExceeded, "late"), 502, "time limits of 60000", "action developer error", false},
		{"sandbox died", nil, runFails(codes.Internal, "the guest panicked"), 502, "the guest panicked", "action developer error", false},
		{"node lost", nil, runFails(codes.Unavailable, "connection refused"), 500, "connection refused", "whisk internal error", false},
		{"init refused", func(in *api.StartRequest) (*api.StartReply, error) {
			return &api.StartReply{Id: in.Id, InitStatus: 502,
				InitReply: []byte(`{"error":"syntax"}`)}, nil
		}, nil, 502, "syntax", "action developer error", false},
		{"no VF", startFails(codes.ResourceExhausted, "all 7 VFs are leased"), nil, 503, "all 7 VFs are leased", "refused", false},
		{"draining", startFails(codes.Unavailable, "the node drains"), nil, 503, "the node drains", "refused", false},
		{"bad image", startFails(codes.InvalidArgument, "no such image"), nil, 502, "no such image", "action developer error", false},
		{"start failed", startFails(codes.Internal, "fastiov report fn-1"), nil, 500, "fastiov report fn-1", "whisk internal error", false},
	} {
		t.Run(o.about, func(t *testing.T) {
			c := newClient(t)
			c.node.start, c.node.run = o.start, o.run
			if o.status == 503 { // the caller may wait for better times
				c.api.cfg.Blocking = 5 * time.Second
			}
			c.put("hello")
			got := c.do("POST", "actions/hello?blocking=true", "{}")
			if got.StatusCode != o.status || !strings.Contains(string(got.body), o.says) {
				t.Errorf("HTTP %d %s; want %d with %q", got.StatusCode, got.body, o.status, o.says)
			}
			series := "fastiov_activations_total openwhisk guest/hello " + o.label
			if n := c.counted(series); n != 1 {
				t.Errorf("%q was counted %v times", o.label, n)
			}
			id := got.Header.Get("x-openwhisk-activation-id")
			c.want(200, c.do("GET", "activations/"+id, ""))
			if !o.kept {
				<-c.node.stops
				return
			}
			c.do("POST", "actions/hello?blocking=true", "{}")
			if starts, _ := c.node.asked(); len(starts) != 1 {
				t.Errorf("%d sandboxes were started", len(starts))
			}
		})
	}
}

func TestWhatTheRuntimeIsTold(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "actions/hello", `{"exec":{"kind":"nodejs:default","code":"x => x"},"limits":{"memory":512,"timeout":700},
		"parameters":[{"key":"a","value":1},{"key":"b","value":2}],"annotations":[{"key":"provide-api-key","value":true}]}`))
	id := c.want(200, c.do("POST", "actions/hello?blocking=true", `{"b":3}`))["activationId"]
	starts, runs := c.node.asked()

	if s := starts[0]; s.Image != "nodejs:18" || s.MemoryMib != 512 || s.WaitMs == 0 ||
		s.Call.GetAction() != "guest/hello" || s.Call.Namespace != "guest" {
		t.Errorf("start: %v", s)
	}
	var init struct {
		Value struct {
			Name, Main, Code string
			Binary           bool
			Env              map[string]string
		}
	}
	if err := json.Unmarshal(starts[0].Init, &init); err != nil {
		t.Fatal(err)
	}
	v := init.Value
	if v.Name != "hello" || v.Main != "main" || v.Code != "x => x" || v.Binary ||
		v.Env["__OW_ACTIVATION_ID"] != id || v.Env["__OW_ACTION_NAME"] != "/guest/hello" {
		t.Errorf("init: %+v", v)
	}
	var run map[string]any
	if err := json.Unmarshal(runs[0].Body, &run); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(run["value"]); got != "map[a:1 b:3]" {
		t.Errorf("arguments: %s", got)
	}
	if run["activation_id"] != id || run["namespace"] != "guest" ||
		run["api_key"] != guest.String() || runs[0].TimeoutMs != 700 {
		t.Errorf("run: %v", run)
	}
	if _, isText := run["deadline"].(string); !isText {
		t.Errorf("deadline: %v", run["deadline"])
	}
}

func TestUpdateAndDeleteStopTheActionsSandboxes(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	c.do("POST", "actions/hello?blocking=true", "{}")
	c.want(200, c.do("PUT", "actions/hello?overwrite=true", hello))
	<-c.node.stops
	if m := c.want(200, c.do("POST", "actions/hello?blocking=true",
		"{}")); notes(m)["coldStart"] == nil || m["version"] != "0.0.2" {
		t.Errorf("after the update: %v", m)
	}
	c.want(200, c.do("DELETE", "actions/hello", ""))
	<-c.node.stops
}

func TestSevenAtOnceStartSeven(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	var together sync.WaitGroup
	together.Add(7)
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		together.Done()
		together.Wait() // nobody answers before all seven run
		return reply(200, "{}"), nil
	}
	var all sync.WaitGroup
	for range 7 {
		all.Go(func() {
			if got := c.do("POST", "actions/hello?blocking=true", "{}"); got.StatusCode != 200 {
				t.Errorf("HTTP %d %s", got.StatusCode, got.body)
			}
		})
	}
	all.Wait()
	if starts, _ := c.node.asked(); len(starts) != 7 {
		t.Errorf("%d sandboxes for 7 calls", len(starts))
	}
}

func TestTooManyInFlight(t *testing.T) {
	c := newClientOf(t, Config{Limits: access.Limits{"concurrentInvocations": 1},
		Pool: pool.Config{Wait: time.Minute, Start: time.Minute}})
	c.put("hello")
	gate := make(chan struct{})
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		<-gate
		return reply(200, "{}"), nil
	}
	c.want(202, c.do("POST", "actions/hello", "{}"))
	c.want(429, c.do("POST", "actions/hello", "{}"))
	close(gate)
}

func TestLogsAreCutAtTheLimit(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "actions/loud", strings.Replace(hello, "{",
		`{"limits":{"logs":1},`, 1)))
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		loud := reply(200, "{}")
		loud.Logs = append(loud.Logs, &api.LogLine{Text: strings.Repeat("x", 1<<20)},
			&api.LogLine{Text: "unheard"})
		return loud, nil
	}
	logs := fmt.Sprint(c.want(200, c.do("POST", "actions/loud?blocking=true", "{}"))["logs"])
	if !strings.Contains(logs, "truncated") || strings.Contains(logs, "xxx") ||
		strings.Contains(logs, "unheard") || !strings.Contains(logs, "ran") {
		t.Errorf("%d bytes of logs: %.300s", len(logs), logs)
	}
}

// The annotation runtime-handler is what the node is asked for; a node that refuses it is quoted.
func TestAnActionNamesItsHandler(t *testing.T) {
	c := newClient(t)
	for value, want := range map[string]string{`"runsc"`: "runsc", `true`: "true", `""`: ""} {
		body := strings.Replace(hello, `{`,
			`{"annotations":[{"key":"runtime-handler","value":`+value+`}],`, 1)
		c.want(200, c.do("PUT", "actions/hello?overwrite=true", body))
		c.want(200, c.do("POST", "actions/hello?blocking=true", "{}"))
		starts, _ := c.node.asked()
		if got := starts[len(starts)-1].Handler; got != want {
			t.Errorf("%s: the node is asked for %q", value, got)
		}
	}
	const refused = "this node has no runtime handler"
	c.node.start = func(*api.StartRequest) (*api.StartReply, error) {
		return nil, status.Error(codes.InvalidArgument, refused)
	}
	c.put("other")
	if got := c.do("POST", "actions/other?blocking=true", "{}"); got.StatusCode != 502 ||
		!strings.Contains(string(got.body), refused) {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
}
