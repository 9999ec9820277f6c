package openwhisk

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
)

// as is the client with another subject's key, which has a namespace of that name.
func (c *client) as(name string, limits access.Limits) *client {
	c.t.Helper()
	key, err := c.api.Register().Create(c.t.Context(), name, name, limits)
	if err != nil {
		c.t.Fatal(err)
	}
	other := *c
	other.key = key
	return &other
}

// rows decodes a list.
func (c *client) rows(got reached) (rows []map[string]any) {
	c.t.Helper()
	if err := json.Unmarshal(got.body, &rows); err != nil || got.StatusCode != 200 {
		c.t.Fatalf("HTTP %d %s: %v", got.StatusCode, got.body, err)
	}
	return rows
}

func names(rows []map[string]any) string {
	var list []string
	for _, row := range rows {
		list = append(list, fmt.Sprint(row["namespace"], "/", row["name"]))
	}
	return strings.Join(list, " ")
}

// result invokes an action and returns what it answered: its arguments.
func (c *client) result(path, body string) string {
	c.t.Helper()
	got := c.do("POST", path+"?blocking=true&result=true", body)
	if got.StatusCode != 200 {
		c.t.Fatalf("%s: HTTP %d %s", path, got.StatusCode, got.body)
	}
	return string(got.body)
}

func TestPackagesAndBindings(t *testing.T) {
	c := newClient(t)
	c.want(404, c.do("PUT", "actions/pk/hello", hello))
	c.want(200, c.do("PUT", "packages/pk",
		`{"parameters":[{"key":"a","value":"package"},{"key":"b","value":"package"}],"publish":true}`))
	c.want(409, c.do("PUT", "packages/pk", `{}`))
	c.want(200, c.do("PUT", "actions/pk/hello",
		strings.Replace(hello, "{", `{"parameters":[{"key":"c","value":"action"}],`, 1)))
	c.want(200, c.do("PUT", "actions/hello", hello))

	if got := c.want(200, c.do("GET", "actions/pk/hello", "")); got["namespace"] != "guest/pk" ||
		len(got["parameters"].([]any)) != 3 {
		t.Errorf("got %v", got)
	}
	if got := names(c.rows(c.do("GET", "actions/pk/", ""))); got != "guest/pk/hello" {
		t.Errorf("in the package: %s", got)
	}
	if got := names(c.rows(c.do("GET", "actions", ""))); got != "guest/hello guest/pk/hello" {
		t.Errorf("all: %s", got)
	}
	if got := c.result("actions/pk/hello",
		`{"b":"caller"}`); got != `{"a":"package","c":"action","b":"caller"}` {
		t.Errorf("result: %s", got)
	}

	bob := c.as("bob", access.Limits{})
	bound := bob.want(200, bob.do("PUT", "packages/mine",
		`{"binding":{"namespace":"guest","name":"pk"},"parameters":[{"key":"b","value":"binding"}]}`))
	if fmt.Sprint(bound["binding"]) != "map[name:pk namespace:guest]" ||
		!strings.Contains(fmt.Sprint(bound["annotations"]), "binding") {
		t.Errorf("bound: %v", bound)
	}
	if got := bob.result("actions/mine/hello",
		`{}`); got != `{"a":"package","b":"binding","c":"action"}` {
		t.Errorf("result through the binding: %s", got)
	}
	record := bob.want(200, bob.do("POST", "/namespaces/guest/actions/pk/hello?blocking=true", ""))
	if record["namespace"] != "bob" || notes(record)["path"] != "guest/pk/hello" {
		t.Errorf("record: %v", record)
	}
	if got := notes(bob.want(200, bob.do("POST",
		"actions/mine/hello?blocking=true", "")))["binding"]; got != "bob/mine" {
		t.Errorf("annotation binding: %v", got)
	}
	if got := bob.want(200, bob.do("GET", "packages/mine", "")); len(got["actions"].([]any)) != 1 ||
		len(got["parameters"].([]any)) != 2 {
		t.Errorf("got %v", got)
	}
	if got := names(bob.rows(bob.do("GET", "actions/mine/", ""))); got != "guest/pk/hello" {
		t.Errorf("in the binding: %s", got)
	}
	bob.want(400, bob.do("PUT", "actions/mine/x", hello))
	bob.want(400, bob.do("PUT", "packages/again", `{"binding":{"namespace":"_","name":"mine"}}`))
	bob.want(400, bob.do("PUT", "packages/again", `{"binding":{"namespace":"_","name":"nothing"}}`))
	bob.want(400, bob.do("PUT", "packages/default", `{}`))

	c.want(409, c.do("DELETE", "packages/pk", ""))
	c.want(200, c.do("POST", "packages/refresh", ""))
	c.want(405, c.do("POST", "packages/pk", ""))
	c.want(200, c.do("DELETE", "packages/pk?force=true", ""))
	c.want(404, c.do("GET", "actions/pk/hello", ""))
	bob.want(403, bob.do("POST", "actions/mine/hello", ""))
	bob.want(200, bob.do("DELETE", "packages/mine", ""))
}

func TestOthersSeeWhatIsPublicOnly(t *testing.T) {
	c := newClient(t)
	for name, body := range map[string]string{"open": `{"publish":true}`, "closed": `{}`} {
		c.want(200, c.do("PUT", "packages/"+name, body))
		c.want(200, c.do("PUT", "actions/"+name+"/hello", hello))
	}
	c.put("hello")
	bob := c.as("bob", access.Limits{})
	if got := names(bob.rows(bob.do("GET",
		"/namespaces/guest/packages", ""))); got != "guest/open" {
		t.Errorf("packages: %s", got)
	}
	if got := string(bob.do("GET", "/namespaces", "").body); got != `["bob"]` {
		t.Errorf("namespaces: %s", got)
	}
	for _, path := range []string{"packages/open", "actions/open/hello", "actions/open/"} {
		if got := bob.do("GET", "/namespaces/guest/"+path, ""); got.StatusCode != 200 {
			t.Errorf("%s: HTTP %d", path, got.StatusCode)
		}
	}
	for _, call := range [][2]string{
		{"GET", "packages/closed"}, {"GET", "packages/nothing"}, {"GET", "actions/closed/hello"}, {"POST", "actions/closed/hello"}, {"GET", "actions/closed/"},
		{"GET", "actions"}, {"GET", "actions/hello"}, {"POST", "actions/hello"}, {"GET", "activations"}, {"GET", "triggers"}, {"GET", "rules"}, {"GET", "limits"},
		{"PUT", "actions/open/hello?overwrite=true"}, {"DELETE", "actions/open/hello"}, {"DELETE", "packages/open"}, {"PUT", "packages/new"}, {"PUT", "triggers/t"},
		{"POST", "packages/refresh"},
	} {
		bob.want(403, bob.do(call[0], "/namespaces/guest/"+call[1], hello))
	}
	bob.want(403, bob.do("PUT", "packages/p", `{"binding":{"namespace":"guest","name":"closed"}}`))
}

func TestSandboxesAreNotSharedBetweenNamespaces(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/pk",
		`{"publish":true,"parameters":[{"key":"HOME","value":"/x","init":true}]}`))
	c.want(200, c.do("PUT", "actions/pk/hello", hello))
	bob := c.as("bob", access.Limits{})
	bob.result("/namespaces/guest/actions/pk/hello", "")
	c.result("actions/pk/hello", "")
	c.result("actions/pk/hello", "")
	starts, _ := c.node.asked()
	if len(starts) != 2 || !strings.Contains(string(starts[0].Init), `"HOME":"/x"`) {
		t.Fatalf("%d starts", len(starts))
	}
	c.want(200, c.do("PUT", "packages/pk?overwrite=true",
		`{"parameters":[{"key":"HOME","value":"/y","init":true}]}`))
	c.result("actions/pk/hello", "")
	if starts, _ = c.node.asked(); len(starts) != 3 ||
		!strings.Contains(string(starts[2].Init), `"HOME":"/y"`) {
		t.Errorf("after the package's parameter changed: %d starts", len(starts))
	}
	c.want(200, c.do("DELETE", "actions/pk/hello", ""))
	for range starts {
		<-c.node.stops
	}
}

// However often a package or a binding of it changes, an action has as many groups of sandboxes as
// it has names, and the sandboxes of older versions end.
func TestVersionsOfAPackageLeaveNothing(t *testing.T) {
	c := newClient(t)
	const parameters = `"parameters":[{"key":"HOME","value":"/%d","init":true}]`
	c.want(200, c.do("PUT", "packages/pk", fmt.Sprintf(`{`+parameters+`}`, 0)))
	c.want(200, c.do("PUT", "packages/mine", `{"binding":{"namespace":"_","name":"pk"}}`))
	c.want(200, c.do("PUT", "actions/pk/hello", hello))
	action, _ := c.api.catalog.actions.get("guest", "pk/hello")
	groups := func(want int) {
		t.Helper()
		action.mu.Lock()
		defer action.mu.Unlock()
		if len(action.groups) != want {
			t.Errorf("%d groups, want %d: %v", len(action.groups), want, action.groups)
		}
	}
	call := func() {
		t.Helper()
		c.result("actions/pk/hello", "")
		c.result("actions/mine/hello", "")
		groups(2)
	}
	call()
	for version := range 20 {
		c.want(200, c.do("PUT", "packages/pk?overwrite=true",
			fmt.Sprintf(`{`+parameters+`}`, version)))
		groups(0)
		<-c.node.stops
		<-c.node.stops
		call()
		c.want(200, c.do("PUT", "packages/mine?overwrite=true",
			fmt.Sprintf(`{`+parameters+`}`, version)))
		groups(1)
		<-c.node.stops
		c.result("actions/mine/hello", "")
	}
	c.want(200, c.do("DELETE", "packages/mine", ""))
	groups(1)
	<-c.node.stops
	if starts, _ := c.node.asked(); len(starts) != 2+20*3 {
		t.Errorf("%d sandboxes started", len(starts))
	}
}

func TestTriggersFireTheirActiveRules(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	c.want(400,
		c.do("PUT", "rules/r", `{"name":"r","status":"","trigger":"/_/t","action":"/_/hello"}`))
	c.want(200, c.do("PUT", "triggers/t", `{"parameters":[{"key":"p","value":1}]}`))
	c.want(409, c.do("PUT", "triggers/t", `{}`))
	c.want(400, c.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/nothing"}`))
	if got := c.do("POST", "triggers/t", "{}"); got.StatusCode != 204 || len(got.body) != 0 {
		t.Errorf("without a rule: HTTP %d %s", got.StatusCode, got.body)
	}
	rule := c.want(200, c.do("PUT", "rules/r",
		`{"name":"r","status":"","trigger":"/_/t","action":"/_/hello"}`))
	if rule["status"] != "active" || fmt.Sprint(rule["action"]) != "map[name:hello path:guest]" {
		t.Errorf("rule: %v", rule)
	}
	c.want(200,
		c.do("PUT", "rules/idle", `{"trigger":"/_/t","action":"/_/hello","status":"inactive"}`))

	const url = "http://127.0.0.1/api/v1/namespaces/_/triggers/t"
	fire := httptest.NewRequest("POST", url, strings.NewReader(`{"q":2}`))
	fire.SetBasicAuth(c.key.UUID, c.key.Secret)
	fire.Header.Set("Foo", "Bar")
	got := c.send(fire)
	id := c.want(202, got)["activationId"]
	if got.Header.Get("x-openwhisk-activation-id") != id {
		t.Error("the header names another activation")
	}
	record := c.want(200, c.do("GET", "activations/"+id.(string), ""))
	if fmt.Sprint(record["response"].(map[string]any)["result"]) != "map[q:2]" ||
		record["name"] != "t" {
		t.Errorf("the trigger's record: %v", record)
	}
	if _, ended := record["end"]; ended || record["duration"] != nil || record["start"] == nil {
		t.Errorf("a trigger has a start alone: %v", record)
	}
	row := c.rows(c.do("GET", "activations?name=t", ""))[0]
	if _, ended := row["end"]; ended || row["duration"] != nil || row["statusCode"] != nil {
		t.Errorf("a trigger's row: %v", row)
	}
	lines := map[string]fired{}
	for _, text := range record["logs"].([]any) {
		var line fired
		if err := json.Unmarshal([]byte(text.(string)), &line); err != nil {
			t.Fatal(err)
		}
		lines[line.Rule] = line
	}
	if ran := lines["guest/r"]; !ran.Success || ran.Action != "guest/hello" || ran.StatusCode != 0 {
		t.Errorf("log: %+v", lines)
	}
	inactive := "Rule 'guest/idle' is inactive, action 'guest/hello' was not activated."
	if idle := lines["guest/idle"]; idle.Success || idle.StatusCode != 1 || idle.Error != inactive {
		t.Errorf("log: %+v", lines)
	}
	c.api.running.Wait()
	ran := c.want(200, c.do("GET", "activations/"+lines["guest/r"].ActivationID, ""))
	result := ran["response"].(map[string]any)["result"].(map[string]any)
	headers := result["__ow_headers"].(map[string]any)
	if headers["foo"] != "Bar" || headers["authorization"] != nil {
		t.Errorf("the headers that the action got: %v", headers)
	}
	delete(result, "__ow_headers")
	if fmt.Sprint(result) != "map[p:1 q:2]" || ran["cause"] != nil {
		t.Errorf("the action's record: %v", ran)
	}

	c.want(200, c.do("POST", "rules/r", `{"status":"inactive","trigger":null,"action":null}`))
	c.want(400, c.do("POST", "rules/r", `{"status":"asleep"}`))
	c.want(404, c.do("POST", "rules/nothing", `{"status":"active"}`))
	if got := c.do("POST", "triggers/t", "{}"); got.StatusCode != 204 {
		t.Errorf("with no active rule: HTTP %d", got.StatusCode)
	}
	if got := c.want(200, c.do("PUT", "rules/r?overwrite=true",
		`{"annotations":[]}`)); got["status"] != "inactive" ||
		got["version"] != "0.0.3" && got["version"] != "0.0.2" {
		t.Errorf("an update changed the status: %v", got)
	}
	if got := c.want(200, c.do("GET", "triggers/t", ""))["rules"]; len(got.(map[string]any)) != 2 {
		t.Errorf("the trigger's rules: %v", got)
	}
	c.want(200, c.do("POST", "rules/r", `{"status":"active"}`))
	c.want(200, c.do("DELETE", "actions/hello", ""))
	id = c.want(202, c.do("POST", "triggers/t", "{}"))["activationId"]
	if logs := fmt.Sprint(c.want(200, c.do("GET", "activations/"+id.(string)+
		"/logs", ""))["logs"]); !strings.Contains(logs, "there is no action") {
		t.Errorf("a rule without its action: %s", logs)
	}
	c.want(200, c.do("DELETE", "triggers/t", ""))
	if got := c.want(200, c.do("GET", "rules/r", "")); got["status"] != "inactive" {
		t.Errorf("a rule without its trigger: %v", got)
	}
	c.want(404, c.do("POST", "rules/r", `{"status":"active"}`))
	c.want(200, c.do("DELETE", "rules/r", ""))
	if got := names(c.rows(c.do("GET", "rules", ""))); got != "guest/idle" {
		t.Errorf("rules: %s", got)
	}
}

func TestASubjectsActionsMayBeBoundedFurther(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/pk", `{"publish":true}`))
	c.put("pk/large")
	bob := c.as("bob", access.Limits{"maxActionMemory": 128, "maxActionTimeout": 1000,
		"maxActionLogs": 1})
	if got := bob.want(200, bob.do("GET", "limits", "")); got["maxActionMemory"] != 128.0 ||
		got["maxActionTimeout"] != 1000.0 || got["maxActionLogs"] != 1.0 ||
		got["minActionMemory"] != 128.0 {
		t.Errorf("limits: %v", got)
	}
	bob.put("hello")
	if got := bob.want(200, bob.do("GET", "actions/hello",
		""))["limits"].(map[string]any); got["memory"] != 128.0 || got["timeout"] != 1000.0 ||
		got["logs"] != 1.0 {
		t.Errorf("an action that says nothing has %v", got)
	}
	bob.want(200, bob.do("POST", "actions/hello?blocking=true", "{}"))
	for _, limits := range []string{`{"memory":129}`, `{"timeout":1001}`, `{"logs":2}`} {
		if m := bob.want(400, bob.do("PUT", "actions/hello?overwrite=true", `{"limits":`+limits+
			`}`)); !strings.Contains(m["error"].(string), "it must be from") {
			t.Errorf("%s: %v", limits, m)
		}
	}
	bob.want(200, bob.putSequence("fits", "hello"))
	if m := bob.want(400, bob.putSequence("chain", "hello", "/guest/pk/large")); !strings.Contains(
		m["error"].(string), "at most 1000") {
		t.Errorf("a sequence of somebody else's: %v", m)
	}
	bob.want(200, bob.do("POST", "actions/fits?blocking=true", "{}"))
	if m := bob.want(400, bob.do("POST", "/namespaces/guest/actions/pk/large",
		"{}")); !strings.Contains(m["error"].(string), "at most 1000") {
		t.Errorf("somebody else's: %v", m)
	}
}

func TestLimitsAreToldAndKept(t *testing.T) {
	c := newClient(t)
	bob := c.as("bob", access.Limits{"invocationsPerMinute": 2, "firesPerMinute": 1})
	if got := bob.want(200, bob.do("GET", "limits", "")); got["invocationsPerMinute"] != 2.0 ||
		got["concurrentInvocations"] != float64(access.Defaults.ConcurrentInvocations) {
		t.Errorf("limits: %v", got)
	}
	bob.put("hello")
	bob.want(200, bob.do("PUT", "triggers/t", "{}"))
	// A minute may end meanwhile, and the counts begin anew; it does not take more than two
	// minutes.
	exceed := func(limit int, path string) reached {
		last := bob.do("POST", path, "{}")
		for n := 0; n < 2*limit && last.StatusCode != 429; n++ {
			last = bob.do("POST", path, "{}")
		}
		return last
	}
	refused := exceed(2, "actions/hello?blocking=true")
	if m := bob.want(429, refused); !strings.Contains(m["error"].(string), "minute") ||
		refused.Header.Get("Retry-After") == "" {
		t.Errorf("refused: %v", m)
	}
	if m := bob.want(429, exceed(1, "triggers/t")); !strings.Contains(m["error"].(string),
		"fired") {
		t.Errorf("refused: %v", m)
	}
	c.put("hello")
	c.result("actions/hello", "{}")
}

func TestBlockedAndDeletedSubjects(t *testing.T) {
	c := newClient(t)
	bob := c.as("bob", access.Limits{})
	register := c.api.Register()
	if err := register.Block(t.Context(), "bob", true); err != nil {
		t.Fatal(err)
	}
	bob.want(403, bob.do("GET", "/namespaces", ""))
	if err := register.Delete(t.Context(), "bob"); err != nil {
		t.Fatal(err)
	}
	bob.want(401, bob.do("GET", "/namespaces", ""))
}

func TestInvokersOfOneStoreSeeEachOther(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	cfg := Config{Store: kept, Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute,
		Start: time.Minute}}
	a, b := newClientOf(t, cfg), newClientOf(t, cfg)
	a.put("hello")
	b.result("actions/hello", "{}")
	a.want(200, a.do("PUT", "actions/hello?overwrite=true", `{"limits":{"memory":128}}`))
	<-b.node.stops
	if got := b.want(200, b.do("GET", "actions/hello", "")); got["version"] != "0.0.2" {
		t.Errorf("got %v", got)
	}
}

// If several callers change one entity at the same time, each change counts once.
func TestChangesAtOnceAllCount(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := c.do("PUT", "actions/hello?overwrite=true", `{}`); got.StatusCode != 200 {
				t.Errorf("HTTP %d %s", got.StatusCode, got.body)
			}
		})
	}
	all.Wait()
	if got := c.want(200, c.do("GET", "actions/hello", "")); got["version"] != "0.0.9" {
		t.Errorf("after nine changes: %v", got["version"])
	}
}

func TestWhatTheEndpointSaysOfItself(t *testing.T) {
	c := newClient(t)
	for _, path := range []string{"/", "/api/v1", "/api/v1/"} {
		m := c.want(200, c.send(httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)))
		if m["build"] == nil || m["runtimes"].(map[string]any)["python"] == nil ||
			m["limits"].(map[string]any)["sequence_length"] != 50.0 {
			t.Errorf("%s: %v", path, m)
		}
	}
}

func TestBrowsersOfOtherSites(t *testing.T) {
	c := newClient(t)
	for origin, allowed := range map[string]string{"http://localhost:8080": "http://localhost:8080",
		"https://example.org": "", "": ""} {
		r := httptest.NewRequest("OPTIONS", "http://127.0.0.1/api/v1/namespaces/_/actions/a", nil)
		r.Header.Set("Origin", origin)
		got := c.send(r)
		if got.StatusCode != 200 || got.Header.Get("Access-Control-Allow-Origin") != allowed {
			t.Errorf("%q: HTTP %d, %v", origin, got.StatusCode, got.Header)
		}
	}
	c.api.cfg.Key.wellKnown = false
	r := httptest.NewRequest("GET", "http://127.0.0.1/api/v1/namespaces", nil)
	r.Header.Set("Origin", "https://example.org")
	r.Header.Set("X-Request-ID", "my-own_1")
	if got := c.send(r); got.Header.Get("Access-Control-Allow-Origin") != "*" ||
		got.Header.Get("X-Request-ID") != "my-own_1" {
		t.Errorf("%v", got.Header)
	}
}
