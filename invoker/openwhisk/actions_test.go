package openwhisk

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

func TestActionLives(t *testing.T) {
	c := newClient(t)
	put := c.want(200, c.do("PUT", "actions/hello", hello))
	if put["version"] != "0.0.1" || put["namespace"] != "guest" {
		t.Errorf("put: %v", put)
	}
	c.want(409, c.do("PUT", "actions/hello?overwrite=false", hello))

	updated := c.want(200, c.do("PUT", "actions/hello?overwrite=true", `{"limits":{"memory":128}}`))
	if updated["version"] != "0.0.2" || updated["limits"].(map[string]any)["memory"] != 128.0 ||
		updated["limits"].(map[string]any)["timeout"] != 60000.0 {
		t.Errorf("updated: %v", updated)
	}
	got := c.want(200, c.do("GET", "actions/hello", ""))
	exec := got["exec"].(map[string]any)
	if exec["code"] != "def main(args): return args" || exec["binary"] != false ||
		exec["kind"] != "python:3" {
		t.Errorf("got: %v", got)
	}
	without := c.want(200, c.do("GET", "actions/hello?code=false", ""))["exec"].(map[string]any)
	if _, found := without["code"]; found || without["binary"] != false {
		t.Errorf("without code: %v", without)
	}
	c.want(200, c.do("DELETE", "actions/hello", ""))
	for _, method := range []string{"GET", "DELETE", "POST"} {
		if m := c.want(404, c.do(method, "actions/hello", "")); m["error"] == "" ||
			m["code"] == "" {
			t.Errorf("%s of what is gone: %v", method, m)
		}
	}
}

func TestUpdateMergesAnnotations(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "actions/a", strings.Replace(hello, "{",
		`{"annotations":[{"key":"x","value":1},{"key":"y","value":2}],`, 1)))
	m := c.want(200, c.do("PUT", "actions/a?overwrite=true",
		`{"annotations":[{"key":"y","value":3}],"delAnnotations":["x"]}`))
	content, err := json.Marshal(m["annotations"])
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"key":"provide-api-key","value":false},{"key":"y","value":3},{"key":"exec","value":"python:3"}]`
	if string(content) != want {
		t.Errorf("got %s, want %s", content, want)
	}
}

func TestListIsPagedNewestFirst(t *testing.T) {
	c := newClient(t)
	for _, name := range []string{"a", "b", "c"} {
		c.put(name)
	}
	for query, want := range map[string]string{
		"":                 "c b a",
		"?limit=0&skip=0":  "c b a",
		"?limit=1&skip=1":  "b",
		"?limit=30&skip=9": "",
	} {
		var rows []struct {
			Name string
			Exec map[string]any
		}
		got := c.do("GET", "actions"+query, "")
		if err := json.Unmarshal(got.body, &rows); err != nil {
			t.Fatalf("%s: %v", got.body, err)
		}
		var names []string
		for _, row := range rows {
			names = append(names, row.Name)
			if len(row.Exec) != 1 {
				t.Errorf("a row's exec is %v", row.Exec)
			}
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%q: %v, want %s", query, names, want)
		}
	}
	if m := c.want(200, c.do("GET", "actions?count=true", "")); m["actions"] != 3.0 {
		t.Errorf("count: %v", m)
	}
}

func TestArchiveIsToldFromSource(t *testing.T) {
	c := newClient(t)
	zip := base64.StdEncoding.EncodeToString([]byte("PK\x03\x04 a zip"))
	m := c.want(200, c.do("PUT", "actions/zip", `{"exec":{"kind":"nodejs:default","code":"`+zip+
		`"}}`))
	if m["exec"].(map[string]any)["binary"] != true {
		t.Errorf("got %v", m)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, b := range []struct {
		about              string
		method, path, body string
		status             int
		says               string
	}{
		{"no JSON", "PUT", "actions/a", "hello", 400, "malformed"},
		{"no exec", "PUT", "actions/a", "{}", 400, "exec is missing"},
		{"trailing JSON", "PUT", "actions/a", hello + "{}", 400, "malformed"},
		{"deep JSON", "PUT", "actions/a", `{"parameters":[{"key":"a","value":` + deep + `}]}`, 400, "malformed"},
		{"unknown kind", "PUT", "actions/a", `{"exec":{"kind":"cobol:1","code":"x"}}`, 400, "python:3"},
		{"no code", "PUT", "actions/a", `{"exec":{"kind":"python:3"}}`, 400, "code is missing"},
		{"a lie about the archive", "PUT", "actions/a", `{"exec":{"kind":"python:3","code":"def","binary":true}}`, 400, "not base64"},
		{"no image", "PUT", "actions/a", `{"exec":{"kind":"blackbox"}}`, 400, "reference"},
		{"too little time", "PUT", "actions/a", strings.Replace(hello, "{", `{"limits":{"timeout":99},`, 1), 400, "from 100 to 300000"},
		{"too much memory", "PUT", "actions/a", strings.Replace(hello, "{", `{"limits":{"memory":4096},`, 1), 400, "limits.memory"},
		{"a text for a number", "PUT", "actions/a", strings.Replace(hello, "{", `{"limits":{"memory":"a"},`, 1), 400, "malformed"},
		{"a bad name", "PUT", "actions/%20a", hello, 400, "no name"},
		{"a long name", "PUT", "actions/" + strings.Repeat("a", 257), hello, 400, "no name"},
		{"a bad flag", "PUT", "actions/a?overwrite=maybe", hello, 400, "overwrite"},
		{"a huge body", "PUT", "actions/a", strings.Repeat(" ", maxActionBody+1), 413, "at most"},
		{"huge parameters", "PUT", "actions/a", strings.Replace(hello, "{", `{"parameters":[{"key":"k","value":"`+strings.Repeat("x", 1<<20)+`"}],`, 1), 413, "parameters"},
		{"a huge payload", "POST", "actions/hello", strings.Repeat(" ", entity.MaxArguments+1), 413, "at most"},
		{"a name twice in the arguments", "POST", "actions/hello", `{"a":1,"a":2}`, 400, "duplicate"},
		{"arguments that are no object", "POST", "actions/hello", "[1]", 400, "malformed"},
		{"deep arguments", "POST", "actions/hello", deep, 400, "malformed"},
		{"too long a wait", "POST", "actions/hello?blocking=true&timeout=60001", "{}", 400, "timeout"},
		{"no wait", "POST", "actions/hello?blocking=true&timeout=0", "{}", 400, "timeout"},
		{"too long a list", "GET", "actions?limit=201", "", 400, "limit"},
		{"a negative skip", "GET", "activations?skip=-1", "", 400, "skip"},
		{"a bad time", "GET", "activations?since=yesterday", "", 400, "since"},
		{"another's namespace", "GET", "/namespaces/other/actions", "", 403, "other"},
		{"a package's action", "GET", "actions/pkg/hello", "", 404, "no package"},
		{"what is not served", "GET", "apis", "", 404, "not served"},
		{"what cannot be done", "PUT", "activations", "", 405, "not supported"},
		{"no activation's id", "GET", "activations/0123", "", 400, "no activation's id"},
		{"no such activation", "GET", "activations/00112233445566778899aabbccddeeff", "", 404, "no activation"},
	} {
		t.Run(b.about, func(t *testing.T) {
			c := *c
			c.t = t
			m := c.want(b.status, c.do(b.method, b.path, b.body))
			if text, _ := m["error"].(string); !strings.Contains(text, b.says) ||
				strings.Contains(text, "\n") {
				t.Errorf("it says %q", text)
			}
			if code, _ := m["code"].(string); len(code) != 32 {
				t.Errorf("the code is %q", code)
			}
		})
	}
}

func TestContentTypeMustBeJSON(t *testing.T) {
	c := newClient(t)
	r := httptest.NewRequest("PUT", "http://localhost/api/v1/namespaces/_/actions/a",
		strings.NewReader(hello))
	r.SetBasicAuth(guest.UUID, guest.Secret)
	r.Header.Set("Content-Type", "text/plain")
	c.want(415, c.send(r))
}

// Whatever the request, the answer is JSON: an action, or an error with both keys.
func FuzzPutAction(f *testing.F) {
	for _, body := range []string{hello, `{}`, `{"exec":null}`,
		`{"exec":{"kind":"blackbox","image":"a/b"},"limits":{"logs":0}}`,
		`{"annotations":[{"key":"a"}],"delAnnotations":["exec"],"exec":{"kind":"python:3","code":"YWJj"}}`} {
		f.Add(body)
	}
	c := newClient(f)
	f.Fuzz(func(t *testing.T, body string) {
		c := *c
		c.t = t
		got := c.do("PUT", "actions/a?overwrite=true", body)
		var m map[string]any
		if err := json.Unmarshal(got.body, &m); err != nil {
			t.Fatalf("HTTP %d %q: %v", got.StatusCode, got.body, err)
		}
		if got.StatusCode >= 500 || got.StatusCode >= 400 &&
			(m["error"] == nil || m["code"] == nil) {
			t.Fatalf("HTTP %d %s", got.StatusCode, got.body)
		}
	})
}

// An action of a former version may allow ten calls at once in a sandbox; its runtime serves one.
func TestAnOldActionHasOneCallASandbox(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	c := newClientOf(t, patient(kept))
	c.put("old")
	watch, end := context.WithCancel(t.Context())
	var doc store.Doc
	if err := kept.Watch(watch, func(d store.Doc) {
		if d.Kind == store.Actions && doc.Body == nil {
			doc = d
		}
	}); err != nil {
		t.Fatal(err)
	}
	end()
	now, old := []byte(`"concurrency":1`), []byte(`"concurrency":10`)
	if !bytes.Contains(doc.Body, now) {
		t.Fatalf("%s", doc.Body)
	}
	doc.Body = bytes.Replace(doc.Body, now, old, 1)
	if _, err := kept.Put(t.Context(), doc, nil, store.Unbounded); err != nil {
		t.Fatal(err)
	}
	limits := c.want(200, c.do("GET", "actions/old", ""))["limits"].(map[string]any)
	if limits["concurrency"] != 10.0 {
		t.Fatalf("limits: %v", limits)
	}
	reached, gate := c.held(false)
	for range 2 {
		c.want(202, c.do("POST", "actions/old", "{}"))
	}
	<-reached
	<-reached
	if starts, _ := c.node.asked(); len(starts) != 2 {
		t.Errorf("two calls at once had %d sandboxes", len(starts))
	}
	close(gate)
}
