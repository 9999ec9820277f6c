package knative

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What a request's body is not is the client's fault, and said as a cluster does.
func TestBodiesThatAreRefused(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const (
		yaml, broken = "application/yaml", "metadata: {name: a\n"
		steps        = "application/json-patch+json"
		strategic    = "application/strategic-merge-patch+json"
		hello, here  = objects + "services/hello", texts + "/here"
	)
	h.owned("here", nil)
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.owned("held", nil, "example.com/mine")
	h.must("DELETE", texts+"/held", "")
	for _, c := range []struct {
		method, path, form, body string
		code                     int
		want                     string
	}{
		{"POST", texts, yaml, broken, 400, "BadRequest"},
		{"PUT", here, yaml, broken, 400, "BadRequest"},
		{"DELETE", here, yaml, broken, 400, "BadRequest"},
		{"DELETE", texts, yaml, broken, 400, "BadRequest"},
		{"PATCH", here, "application/apply-patch+yaml", broken, 400, "BadRequest"},
		{"PATCH", here, "", "{}", 415, "unknown format"},
		{"PATCH", hello, strategic, "{}", 415, "UnsupportedMediaType"},
		{"PATCH", here, steps, "{}", 400, "BadRequest"},
		{"PATCH", here, steps, `[{"op":"remove","path":"/a"}]`, 422, "Invalid"},
		{"PUT", hello, "", described("hello", "x"), 422, "must be specified for an update"},
		{"PUT", texts + "/none", "", "{}", 404, "not found"},
		{"POST", texts, "", `{"metadata":{"name":"held"}}`, 409, "object is being deleted: "},
		{"PUT", hello + "/status", "", "{}", 405, "MethodNotAllowed"},
		{"POST", here, "", "{}", 405, "MethodNotAllowed"},
		{"DELETE", here, "", `{"orphanDependents":true,"propagationPolicy":"Orphan"}`, 422,
			"Invalid"},
		{"DELETE", here, "", "[]", 400, "BadRequest"},
		{"DELETE", here + "?dryRun=All", yaml, "", 200, "Success"}, // which deletes nothing
	} {
		what := c.method + " " + c.path + " " + c.form + " " + c.body
		code, said := h.ask(c.method, c.path, c.form, c.body)
		if code != c.code || !strings.Contains(said, c.want) ||
			!strings.Contains(said, `"kind":"Status"`) {
			t.Errorf("%s is answered %d %s", what, code, said)
		}
	}
	if o := h.is(here); o == nil || o.DeletionTimestamp != nil {
		t.Errorf("after that there is %v", o)
	}
}

// A node that cannot serve the API tells its clients why, and is OpenWhisk's to all others.
func TestAnAPIThatIsRefused(t *testing.T) {
	refused := Refuse("the store is no file", http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for path, want := range map[string]int{
		"/version": 503, "/apis": 503, "/api": 503, "/openapi/v2": 503, objects + "services": 503,
		core + "secrets": 503, "/api/v1/namespaces/_/actions": 418, "/api/v1/web/a/b/c": 418,
		"/": 418,
	} {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		if path == core+"secrets" {
			r.Header.Set("Authorization", "Bearer x")
		}
		refused.ServeHTTP(w, r)
		if w.Code != want || want == 503 && (!strings.Contains(w.Body.String(),
			`"reason":"ServiceUnavailable"`) ||
			!strings.Contains(w.Body.String(), "the store is no file")) {
			t.Errorf("%s is answered %d %s", path, w.Code, w.Body)
		}
	}
}
