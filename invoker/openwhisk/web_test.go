package openwhisk

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
	"github.com/fastiov/fastiov/invoker/pool"
)

// putWeb puts a web action with further annotations and parameters.
func (c *client) putWeb(name, annotations, parameters string) {
	c.t.Helper()
	c.want(200, c.do("PUT", "actions/"+name+"?overwrite=true",
		`{"annotations":[{"key":"web-export","value":true},{"key":"final","value":true}`+
			annotations+`],"parameters":[`+parameters+`],`+hello[1:]))
}

// web sends a request without a key; headers are "Name: value".
func (c *client) web(method, path, body string, headers ...string) reached {
	c.t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, "http://127.0.0.1:3233/api/v1/web/"+path, content)
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	return c.send(r)
}

func TestWebActionIsToldOfItsRequest(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/pk", `{"parameters":[{"key":"of","value":"package"}]}`))
	c.putWeb("pk/echo", "", `{"key":"open","value":null}`)
	m := c.want(200, c.web("POST", "guest/pk/echo.json/some/where%2f?a=1&a=2&b=q",
		`{"b":{"c":3},"open":4}`, "Content-Type: application/json", "X-Mine: a",
		"X-Mine: b", "Cookie: k=v"))
	headers := m["__ow_headers"].(map[string]any)
	if headers["x-mine"] != "a, b" || headers["host"] != "127.0.0.1:3233" ||
		headers["content-type"] != "application/json" || headers["cookie"] != "k=v" {
		t.Errorf("headers: %v", headers)
	}
	delete(m, "__ow_headers")
	content, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"__ow_method":"post","__ow_path":"/some/where%2f",` +
		`"a":"2","b":{"c":3},"of":"package","open":4}`; string(content) != want {
		t.Errorf("got %s, want %s", content, want)
	}
	if rows := c.rows(c.do("GET", "activations", "")); rows[0]["name"] != "echo" ||
		rows[0]["namespace"] != "guest" {
		t.Errorf("rows: %v", rows)
	}
}

func TestWebBodies(t *testing.T) {
	c := newClient(t)
	c.putWeb("echo", "", "")
	c.putWeb("raw", `,{"key":"raw-http","value":true}`, "")
	in64 := base64.StdEncoding.EncodeToString
	for _, b := range []struct{ action, contentType, body, want string }{
		{"echo", "application/x-www-form-urlencoded", "x=1&y=a+b", `"x":"1","y":"a b"`},
		{"echo", "application/json", "[1]", `"__ow_body":[1]`},
		{"echo", "application/vnd.api+json", `{"x":1}`, `"x":1`},
		{"echo", "text/plain", "hi", `"__ow_body":"hi"`},
		{"echo", "image/png", "\x89PNG", `"__ow_body":"` + in64([]byte("\x89PNG")) + `"`},
		{"echo", "", "\xff", `"__ow_body":"` + in64([]byte("\xff")) + `"`},
		{"echo", "application/json", "", `"q":"1"`},
		{"raw", "application/json", `{"x":1}`, `"__ow_body":"` + in64([]byte(`{"x":1}`)) + `"`},
		{"raw", "application/json", `{"x":1}`, `"__ow_query":"q=1"`},
		{"raw", "application/x-www-form-urlencoded", "x=1", `"__ow_body":"x=1"`},
		{"raw", "", "", `"__ow_body":""`},
	} {
		got := c.web("PUT", "guest/default/"+b.action+".json?q=1", b.body, "Content-Type: "+
			b.contentType)
		if got.StatusCode != 200 || !strings.Contains(string(got.body), b.want) ||
			strings.Contains(string(got.body), `"q"`) == (b.action == "raw") {
			t.Errorf("%s %s %q: HTTP %d %s, want %s", b.action, b.contentType, b.body,
				got.StatusCode, got.body, b.want)
		}
	}
}

func TestBadWebRequestsAreRefused(t *testing.T) {
	c := newClient(t)
	c.put("private")
	c.putWeb("echo", "", `{"key":"fixed","value":1}`)
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, b := range []struct {
		about, method, path, body string
		status                    int
	}{
		{"not exported", "GET", "guest/default/private", "", 404},
		{"not there", "GET", "guest/default/nobody.json", "", 404},
		{"no such namespace", "GET", "nobody/default/echo", "", 404},
		{"the caller's own namespace", "GET", "_/default/echo", "", 404},
		{"no such package", "GET", "guest/pk/echo", "", 404},
		{"another extension", "GET", "guest/default/echo.exe", "", 404},
		{"only an extension", "GET", "guest/default/.json", "", 404},
		{"no action", "GET", "guest/default", "", 404},
		{"nothing", "GET", "", "", 404},
		{"a bad name", "GET", "guest/default/e%2Fcho", "", 404},
		{"up and away", "GET", "guest/../namespaces/_/actions", "", 404},
		{"a method of its own", "BREW", "guest/default/echo", "", 405},
		{"part of a method", "ET", "guest/default/echo", "", 405},
		{"what is fixed, by the query", "GET", "guest/default/echo?fixed=2", "", 400},
		{"what is fixed, by the body", "POST", "guest/default/echo", `{"fixed":2}`, 400},
		{"what is told, by the query", "GET", "guest/default/echo?__ow_user=me", "", 400},
		{"what is told, by the body", "POST", "guest/default/echo", `{"__ow_body":2}`, 400},
		{"malformed", "POST", "guest/default/echo", `{`, 400},
		{"a name twice", "POST", "guest/default/echo", `{"a":1,"a":2}`, 400},
		{"as deep as can be", "POST", "guest/default/echo", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), 400},
		{"deep", "POST", "guest/default/echo", deep, 400},
		{"huge", "POST", "guest/default/echo", strings.Repeat(" ", entity.MaxArguments+1), 413},
		{"a bad query", "GET", "guest/default/echo?a=%zz", "", 400},
	} {
		t.Run(b.about, func(t *testing.T) {
			c := *c
			c.t = t
			m := c.want(b.status, c.web(b.method, b.path, b.body, "Content-Type: application/json"))
			if m["error"] == "" || m["code"] == "" {
				t.Errorf("it says %v", m)
			}
		})
	}
	if _, runs := c.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs", len(runs))
	}
}

func TestWhoMayCallWebActions(t *testing.T) {
	c := newClient(t)
	c.putWeb("any", `,{"key":"require-whisk-auth","value":true}`, "")
	c.putWeb("secret", `,{"key":"require-whisk-auth","value":"open sesame"}`, "")
	c.putWeb("number", `,{"key":"require-whisk-auth","value":12345678901234567890}`, "")
	c.putWeb("empty", `,{"key":"require-whisk-auth","value":""}`, "")
	c.putWeb("odd", `,{"key":"require-whisk-auth","value":[]}`, "")
	c.putWeb("never", `,{"key":"require-whisk-auth","value":false}`, "")
	other := c.as("other", access.Limits{})
	basic := func(k access.Key) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(k.String()))
	}
	for _, b := range []struct {
		action  string
		headers []string
		status  int
	}{
		{"any", nil, 401},
		{"any", []string{"Authorization: Basic bm86bm8="}, 401},
		{"any", []string{basic(guest.Key)}, 200},
		{"any", []string{basic(other.key)}, 200},
		{"any", []string{basic(guest.Key), "Origin: https://evil.example"}, 401},
		{"secret", nil, 401},
		{"secret", []string{basic(guest.Key)}, 401},
		{"secret", []string{"X-Require-Whisk-Auth: open"}, 401},
		{"secret", []string{"X-Require-Whisk-Auth: open sesame"}, 200},
		{"number", []string{"X-Require-Whisk-Auth: 12345678901234567890"}, 200},
		{"empty", nil, 401},
		{"odd", []string{"X-Require-Whisk-Auth: []"}, 401},
		{"never", nil, 200},
	} {
		got := c.web("GET", "guest/default/"+b.action+".json", "", b.headers...)
		if got.StatusCode != b.status {
			t.Errorf("%s %v: HTTP %d %s, want %d", b.action, b.headers,
				got.StatusCode, got.body, b.status)
		}
	}
	m := c.want(200, c.web("GET", "guest/default/any.json", "", basic(other.key)))
	if m["__ow_user"] != "other" || m["__ow_headers"].(map[string]any)["authorization"] != nil {
		t.Errorf("the action is told %v", m)
	}
	m = c.want(200, c.web("GET", "guest/default/never.json", "", "Authorization: Bearer mine"))
	if m["__ow_user"] != nil ||
		m["__ow_headers"].(map[string]any)["authorization"] != "Bearer mine" {
		t.Errorf("the action is told %v", m)
	}
}

// A key is not handed on where it does not count either: it may count elsewhere, or again.
func TestWebActionsAreNotToldKeys(t *testing.T) {
	c := newClient(t)
	c.putWeb("echo", "", "")
	blocked := c.as("blocked", access.Limits{})
	if err := c.api.Register().Block(t.Context(), "blocked", true); err != nil {
		t.Fatal(err)
	}
	basic := func(text string) string {
		return "basic " + base64.StdEncoding.EncodeToString([]byte(text))
	}
	for about, b := range map[string]struct {
		host, origin  string
		authorization []string
		handedOn      bool
	}{
		"another host":     {"node.example:3233", "", []string{basic(guest.String())}, false},
		"a foreign page":   {"127.0.0.1:3233", "https://a.org", []string{basic(guest.String())}, false},
		"a blocked user's": {"127.0.0.1:3233", "", []string{basic(blocked.key.String())}, false},
		"mistyped":         {"127.0.0.1:3233", "", []string{basic(guest.UUID + ":no")}, false},
		"the second":       {"127.0.0.1:3233", "", []string{"Bearer it", basic(guest.String())}, false},
		"the action's own": {"127.0.0.1:3233", "", []string{basic("ann:hers")}, true},
	} {
		r := httptest.NewRequest("GET", "http://"+b.host+"/api/v1/web/guest/default/echo.json", nil)
		r.Header["Authorization"] = b.authorization
		if b.origin != "" {
			r.Header.Set("Origin", b.origin)
		}
		told := c.want(200, c.send(r))["__ow_headers"].(map[string]any)["authorization"]
		if (told != nil) != b.handedOn {
			t.Errorf("%s: the action is told %v", about, told)
		}
	}
}

func TestWebActionsAreSharedWithEverySite(t *testing.T) {
	c := newClient(t)
	c.putWeb("echo", `,{"key":"require-whisk-auth","value":"s"}`, "")
	c.putWeb("own", `,{"key":"web-custom-options","value":true}`, "")
	got := c.web("OPTIONS", "guest/default/echo", "", "Origin: https://a.example",
		"Access-Control-Request-Headers: x-mine")
	if h := got.Header; got.StatusCode != 200 || len(got.body) != 0 ||
		h.Get("Access-Control-Allow-Origin") != "*" ||
		h.Get("Access-Control-Allow-Headers") != "x-mine" ||
		h.Get("Access-Control-Allow-Methods") != "OPTIONS, GET, DELETE, POST, PUT, HEAD, PATCH" {
		t.Errorf("HTTP %d %v", got.StatusCode, h)
	}
	if _, runs := c.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs", len(runs))
	}
	c.does(map[string]func(map[string]any) string{"own": says(
		`{"headers":{"Access-Control-Allow-Origin":"https://b.example"}}`)})
	got = c.web("OPTIONS", "guest/default/own", "", "Origin: https://b.example")
	if h := got.Header; got.StatusCode != 204 ||
		h.Get("Access-Control-Allow-Origin") != "https://b.example" ||
		h.Get("Access-Control-Allow-Methods") != "" {
		t.Errorf("HTTP %d %v", got.StatusCode, h)
	}
}

func TestWebActionsCountAsTheirOwners(t *testing.T) {
	c := newClient(t)
	poor := c.as("poor", access.Limits{"invocationsPerMinute": 1})
	poor.putWeb("echo", "", "")
	minute := time.Now().Minute()
	first, second := c.web("GET", "poor/default/echo.json", ""),
		c.web("GET", "poor/default/echo.json", "")
	if first.StatusCode != 200 || second.StatusCode != 429 && time.Now().Minute() == minute {
		t.Errorf("HTTP %d, %d", first.StatusCode, second.StatusCode)
	}
}

func TestASlowWebActionIsNotReady(t *testing.T) {
	c := newClientOf(t, Config{Blocking: 50 * time.Millisecond,
		Pool: pool.Config{Wait: time.Minute, Start: time.Minute}})
	c.putWeb("slow", "", "")
	reached, gate := c.held(false)
	got := c.web("GET", "guest/default/slow", "")
	if m := c.want(202, got); m["error"] == nil {
		t.Errorf("it says %v", m)
	}
	<-reached
	close(gate)
	c.api.running.Wait()
	c.want(200, c.do("GET", "activations/"+got.Header.Get(web.ActivationID), ""))
}

func TestWebSequences(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.does(map[string]func(map[string]any) string{"a": func(args map[string]any) string {
		return fmt.Sprintf(`{"body":%q}`, args["x"])
	}})
	c.want(200, c.do("PUT", "actions/s",
		`{"exec":{"kind":"sequence","components":["a"]},"annotations":[{"key":"web-export","value":true}]}`))
	if got := c.web("GET", "guest/default/s?x=hi", ""); got.StatusCode != 200 ||
		string(got.body) != "hi" {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
}
