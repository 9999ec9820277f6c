package entity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var rules = Rules{Standard(), OpenWhisks}

const hello = `{"exec":{"kind":"python:default","code":"def main(args): return args"}}`

func action(t testing.TB, from *Action, body string) (*Action, []byte) {
	t.Helper()
	next, code, err := change(from, body)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return next, code
}

func change(from *Action, body string) (*Action, []byte, error) {
	var by ActionChange
	if err := Decode([]byte(body), &by); err != nil {
		return nil, nil, err
	}
	if from == nil {
		from = &Action{Common: Named(Path{"guest", "pk", "hello"})}
	}
	return from.Changed(by, rules, t0)
}

func refused(t *testing.T, about string, err error, status int, says string) {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Status != status || !strings.Contains(r.Why, says) ||
		strings.Contains(r.Why, "\n") {
		t.Errorf("%s: %v; want %d with %q", about, err, status, says)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestPaths(t *testing.T) {
	for text, want := range map[string]string{
		"hello": "/me/hello", "/_/hello": "/me/hello", "/guest/hello": "/guest/hello",
		"guest/hello": "/guest/hello",
		"/_/pk/hello": "/me/pk/hello", "guest/pk/a b": "/guest/pk/a b",
	} {
		p, err := ParsePath(text, "me")
		if err != nil || p.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, p, err, want)
		}
	}
	for _, text := range []string{"", "/", "//", "/a//b", "a/b/c/d", " a", "a ", "-a", "a/" +
		strings.Repeat("a", 257), "a\n", "a\x00b", "ä", "a?b"} {
		_, err := ParsePath(text, "me")
		refused(t, text, err, 400, "name")
	}
}

func TestReferences(t *testing.T) {
	var p Path
	for _, content := range []string{`"/guest/pk/a"`, `{"path":"guest/pk","name":"a"}`} {
		if err := json.Unmarshal([]byte(content), &p); err != nil ||
			p != (Path{"guest", "pk", "a"}) {
			t.Errorf("%s: %v, %v", content, p, err)
		}
	}
	if got := asJSON(t, p); got != `{"path":"guest/pk","name":"a"}` {
		t.Error(got)
	}
}

func TestAnActionIsMade(t *testing.T) {
	a, code := action(t, nil, hello)
	want := `{"namespace":"guest/pk","name":"hello","version":"0.0.1","publish":false,"annotations":[{"key":"provide-api-key","value":false},` +
		`{"key":"exec","value":"python:3"}],"updated":1767225600000,"exec":{"kind":"python:3","binary":false},"parameters":[],` +
		`"limits":{"timeout":60000,"memory":256,"logs":10,"concurrency":1}}`
	if got := asJSON(t, a); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if string(code) != "def main(args): return args" || a.Image(rules.Runtimes) != "python:3" ||
		a.Path() != (Path{"guest", "pk", "hello"}) {
		t.Errorf("%q %q %v", code, a.Image(rules.Runtimes), a.Path())
	}
	if got := *a.Shown(code).Exec.Code; got != string(code) {
		t.Errorf("shown with %q", got)
	}
	var again Action
	if err := json.Unmarshal([]byte(asJSON(t, a)), &again); err != nil ||
		!reflect.DeepEqual(again.Exec, a.Exec) || again.Path() != a.Path() {
		t.Errorf("kept as %+v, %v", again, err)
	}
}

func TestAnUpdateKeepsWhatItDoesNotName(t *testing.T) {
	a, _ := action(t, nil,
		`{"exec":{"kind":"nodejs:18","code":"x","main":"go"},"parameters":[{"key":"p","value":1}],`+
			`"annotations":[{"key":"x","value":1},{"key":"y","value":2}],"publish":true}`)
	b, code := action(t, a,
		`{"limits":{"memory":128},"annotations":[{"key":"y","value":3}],"delAnnotations":["x"]}`)
	if code != nil || b.Exec.Main != "go" || b.Limits.MemoryMB != 128 ||
		b.Limits.TimeoutMs != 60_000 || b.Version != "0.0.2" || !b.Publish {
		t.Errorf("%+v, code %q", b, code)
	}
	if got := asJSON(t,
		b.Annotations); got !=
		`[{"key":"provide-api-key","value":false},{"key":"y","value":3},{"key":"exec","value":"nodejs:18"}]` {
		t.Error(got)
	}
	if got := asJSON(t, b.Parameters); got != `[{"key":"p","value":1}]` {
		t.Error(got)
	}
	if a.Version != "0.0.1" || a.Limits.MemoryMB != 256 {
		t.Error("the change reached into what it was made from")
	}
	if c, _ := action(t, b, `{"version":"1.2.3"}`); c.Version != "1.2.3" {
		t.Error(c.Version)
	} else if d, _ := action(t, c, `{}`); d.Version != "1.2.4" {
		t.Error(d.Version)
	}
}

func TestKindsOfExec(t *testing.T) {
	zip := base64.StdEncoding.EncodeToString([]byte("PK\x03\x04 a zip"))
	a, _ := action(t, nil, `{"exec":{"kind":"nodejs:default","code":"`+zip+`"}}`)
	if !*a.Exec.Binary {
		t.Error("an archive was taken for source")
	}
	s, code := action(t, a, `{"exec":{"kind":"sequence","components":["/_/a","/other/pk/b","c"]}}`)
	if fmt.Sprint(s.Exec.Components) != "[/guest/a /other/pk/b /guest/c]" || code == nil ||
		len(code) > 0 || *s.Exec.Binary {
		t.Errorf("%+v, code %v", s.Exec, code)
	}
	b, _ := action(t, nil, `{"exec":{"kind":"blackbox","image":"me/img:1"}}`)
	if b.Image(rules.Runtimes) != "me/img:1" {
		t.Errorf("%+v", b.Exec)
	}
}

func TestBadActionsAreRefused(t *testing.T) {
	with := func(extra string) string { return strings.Replace(hello, "{", "{"+extra+",", 1) }
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, c := range []struct {
		about, body string
		status      int
		says        string
	}{
		{"no JSON", "hello", 400, "malformed"},
		{"more JSON", hello + "{}", 400, "malformed"},
		{"deep JSON", `{"parameters":[{"key":"a","value":` + deep + `}]}`, 400, "malformed"},
		{"a name twice", `{"exec":{"kind":"python:3","kind":"x"}}`, 400, "duplicate"},
		{"a name twice in a value", with(`"parameters":[{"key":"a","value":{"b":1,"b":2}}]`), 400, "duplicate"},
		{"no UTF-8", with("\"parameters\":[{\"key\":\"\xff\"}]"), 400, "UTF-8"},
		{"no exec", "{}", 400, "exec is missing"},
		{"unknown kind", `{"exec":{"kind":"cobol:1","code":"x"}}`, 400, "python:3"},
		{"no code", `{"exec":{"kind":"python:3"}}`, 400, "code is missing"},
		{"a lie about the archive", `{"exec":{"kind":"python:3","code":"def","binary":true}}`, 400, "not base64"},
		{"no image", `{"exec":{"kind":"blackbox"}}`, 400, "reference"},
		{"an empty sequence", `{"exec":{"kind":"sequence"}}`, 400, "components"},
		{"a long sequence", `{"exec":{"kind":"sequence","components":["a"` + strings.Repeat(`,"a"`, MaxComponents) + `]}}`, 400, "at most 50"},
		{"a bad component", `{"exec":{"kind":"sequence","components":["a/b/c/d"]}}`, 400, "no name"},
		{"too little time", with(`"limits":{"timeout":99}`), 400, "from 100 to 300000"},
		{"too much memory", with(`"limits":{"memory":4096}`), 400, "limits.memory"},
		{"two calls at once", with(`"limits":{"concurrency":2}`), 400, "limits.concurrency is 2; it must be from 1 to 1"},
		{"a text for a number", with(`"limits":{"memory":"a"}`), 400, "malformed"},
		{"a bad version", with(`"version":"new"`), 400, "version"},
		{"an empty key", with(`"annotations":[{"key":""}]`), 400, "key is empty"},
		{"huge parameters", with(`"parameters":[{"key":"k","value":"` + strings.Repeat("x", 1<<20) + `"}]`), 413, "parameters"},
		{"huge code", `{"exec":{"kind":"python:3","code":"` + strings.Repeat("x", MaxCode*4/3+1) + `"}}`, 413, "exec.code"},
	} {
		_, _, err := change(nil, c.body)
		refused(t, c.about, err, c.status, c.says)
	}
}

func TestBindings(t *testing.T) {
	p := &Package{Common: Named(Path{Namespace: "guest", Name: "mine"})}
	bound, err := p.Changed(PackageChange{Binding: &Binding{"_", "theirs"}}, t0)
	if err != nil || !bound.Bound() || bound.Binding != (Binding{"guest", "theirs"}) {
		t.Fatalf("%+v, %v", bound, err)
	}
	if got := asJSON(t,
		bound.Annotations); got !=
		`[{"key":"binding","value":{"namespace":"guest","name":"theirs"}}]` {
		t.Error(got)
	}
	plain, err := p.Changed(PackageChange{}, t0)
	if err != nil || plain.Bound() || !strings.Contains(asJSON(t, plain), `"binding":{}`) {
		t.Errorf("%+v, %v", plain, err)
	}
	_, err = plain.Changed(PackageChange{Binding: &Binding{"_", "theirs"}}, t0)
	refused(t, "a package that becomes a binding", err, 409, "cannot become")

	plain.Parameters = Pairs{{Key: "a", Value: json.RawMessage("1")},
		{Key: "b", Value: json.RawMessage("1")}}
	bound.Parameters = Pairs{{Key: "b", Value: json.RawMessage("2")}}
	a, _ := action(t, nil, hello)
	f, _ := action(t, nil, strings.Replace(hello, "{",
		`{"annotations":[{"key":"feed","value":true}],`, 1))
	var shown struct {
		Parameters     Pairs
		Actions, Feeds []Common
	}
	if err := json.Unmarshal([]byte(asJSON(t, bound.Shown(plain, []*Action{a, f}))),
		&shown); err != nil {
		t.Fatal(err)
	}
	if asJSON(t, shown.Parameters) != `[{"key":"a","value":1},{"key":"b","value":2}]` ||
		len(shown.Actions) != 1 || len(shown.Feeds) != 1 {
		t.Errorf("%+v", shown)
	}
}

func TestRulesAndTriggers(t *testing.T) {
	r := &Rule{Common: Named(Path{Namespace: "guest", Name: "r"})}
	var by RuleChange
	if err := Decode([]byte(`{"name":"r","status":"","trigger":"/_/t","action":"/_/pk/a"}`),
		&by); err != nil {
		t.Fatal(err)
	}
	rule, err := r.Changed(by, t0)
	if err != nil || rule.Status != Active {
		t.Fatalf("%+v, %v", rule, err)
	}
	if got := asJSON(t, rule); !strings.Contains(got,
		`"status":"active","trigger":{"path":"guest","name":"t"},"action":{"path":"guest/pk","name":"a"}`) {
		t.Error(got)
	}
	keeps(t, rule, new(Rule))
	for status, body := range map[int]string{400: `{"trigger":"t"}`,
		403: `{"trigger":"/other/t","action":"a"}`} {
		by := RuleChange{}
		if err := Decode([]byte(body), &by); err != nil {
			t.Fatal(err)
		}
		_, err := r.Changed(by, t0)
		refused(t, body, err, status, "")
	}
	trigger := &Trigger{Common: Named(Path{Namespace: "guest", Name: "t"})}
	if got := asJSON(t, trigger.Shown([]*Rule{rule})); !strings.Contains(got,
		`"guest/r":{"action":{"path":"guest/pk","name":"a"},"status":"active"}`) {
		t.Error(got)
	}
	_, err = trigger.Changed(TriggerChange{CommonChange: CommonChange{
		Annotations: &Pairs{{Key: "feed", Value: json.RawMessage("7")}}}}, t0)
	refused(t, "a feed that is no name", err, 400, "feed")
}

func TestRuntimes(t *testing.T) {
	r, err := ParseRuntimes([]byte(`{"runtimes":{"go":[{"kind":"go:1","image":{"prefix":"openwhisk","name":"action-golang","tag":"nightly"},"deprecated":true},
		{"kind":"go:2","default":true,"image":{"registry":"r.io","name":"g"},"stemCells":[{"initialCount":2,"memory":"256 MB"}]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Image("go:1") != "openwhisk/action-golang:nightly" || r.Image("go:2") != "r.io/g" ||
		r.Families()["go"][1].StemCells[0] != (StemCell{Count: 2, Memory: 256}) {
		t.Errorf("%+v", r)
	}
	if kind, err := r.Resolve("go:default"); kind != "go:2" || err != nil {
		t.Error(kind, err)
	}
	_, err = r.Resolve("go:1")
	refused(t, "deprecated", err, 400, "deprecated")
	for _, content := range []string{`{}`, `[]`, `{"runtimes":{"go":[]}}`,
		`{"runtimes":{"go":[{"kind":"py:1","default":true,"image":{"name":"a"}}]}}`,
		`{"runtimes":{"go":[{"kind":"go:1","default":true,"image":{"name":""}}]}}`,
		`{"runtimes":{"go":[{"kind":"go:1","default":true,"image":{"name":"a"},"stemCells":[{"initialCount":1,"memory":"lots"}]}]}}`} {
		if _, err := ParseRuntimes([]byte(content)); err == nil {
			t.Errorf("%s was taken", content)
		}
	}
}

// Whatever a PUT says, it makes an entity that can be kept, shown and changed again, or a refusal
// that is the caller's fault.
func FuzzChange(f *testing.F) {
	for _, body := range []string{hello, `{}`, `{"exec":null}`,
		`{"exec":{"kind":"blackbox","image":"a/b"},"limits":{"logs":0}}`,
		`{"exec":{"kind":"sequence","components":["/_/a"]},"version":"1.1.1"}`,
		`{"binding":{"namespace":"_","name":"a"}}`,
		`{"trigger":"/_/t","action":{"path":"_/a","name":"b"},"status":"inactive"}`,
		`{"annotations":[{"key":"a"},{"key":"a","value":[1]}],"delAnnotations":["exec"],"exec":{"kind":"python:3","code":"YWJj"}}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if a, code, err := change(nil, string(body)); fair(t, body, err) {
			if *a.Exec.Binary && len(code) == 0 {
				t.Fatalf("%q: an archive of nothing", body)
			}
			keeps(t, a, new(Action))
			if _, _, err := change(a, string(body)); err != nil {
				t.Fatalf("%q: the same again: %v", body, err)
			}
		}
		var p PackageChange
		if err := Decode(body, &p); fair(t, body, err) {
			if made, err := (&Package{Common: Named(Path{Namespace: "g", Name: "p"})}).Changed(p,
				t0); fair(t, body, err) {
				keeps(t, made, new(Package))
			}
		}
		var r RuleChange
		if err := Decode(body, &r); fair(t, body, err) {
			if made, err := (&Rule{Common: Named(Path{Namespace: "g", Name: "r"})}).Changed(r,
				t0); fair(t, body, err) {
				keeps(t, made, new(Rule))
			}
		}
	})
}

// fair reports whether there was no error, and fails if there was one that the caller did not
// cause.
func fair(t *testing.T, body []byte, err error) bool {
	var r *Refusal
	if err != nil && (!errors.As(err, &r) || r.Status < 400 || r.Status > 499) {
		t.Fatalf("%q: %v", body, err)
	}
	return err == nil
}

// keeps checks that made is the same after it was kept as JSON.
func keeps(t *testing.T, made, into any) {
	kept := asJSON(t, made)
	if err := json.Unmarshal([]byte(kept), into); err != nil {
		t.Fatalf("%s: %v", kept, err)
	}
	if again := asJSON(t, into); again != kept {
		t.Fatalf("%s became %s", kept, again)
	}
}

// FuzzName compares the names that are taken with the expression that OpenWhisk gives for them.
func FuzzName(f *testing.F) {
	segment := regexp.MustCompile(`^\w([\w@ .&-]{0,254}[\w@.&-])?$`)
	for _, name := range []string{
		"", "a", " ", "a ", "_", "@", "a@", "a b", "-a", "a\n", "é", strings.Repeat("x", 256),
		strings.Repeat("x", 257),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if taken := CheckName(name) == nil; taken != segment.MatchString(name) {
			t.Errorf("%q is taken: %v", name, taken)
		}
	})
}
