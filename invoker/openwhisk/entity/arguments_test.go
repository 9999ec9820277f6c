package entity

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func pairs(t testing.TB, content string) (p Pairs) {
	t.Helper()
	if err := json.Unmarshal([]byte(content), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParametersAreLaidOverEachOther(t *testing.T) {
	fixed := Fix(false,
		pairs(t,
			`[{"key":"a","value":"package"},{"key":"b","value":"package"},{"key":"c","value":"package"},{"key":"d","value":"package"}]`),
		pairs(t,
			`[{"key":"b","value":"binding"},{"key":"c","value":"binding"},{"key":"d","value":"binding"}]`),
		pairs(t,
			`[{"key":"c","value":"action"},{"key":"d","value":"action"},{"key":"E","value":7,"init":true},{"key":"F","value":"x","init":true}]`))
	got, err := fixed.Under([]byte(` {"d":"caller", "e":{"f":[1]}} `))
	if want := `{"a":"package","b":"binding","c":"action","d":"caller", "e":{"f":[1]}}`; err !=
		nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if !reflect.DeepEqual(fixed.Init, map[string]string{"E": "7", "F": "x"}) {
		t.Errorf("environment: %v", fixed.Init)
	}
	for _, none := range []string{"", " ", "null", "{}", " { } "} {
		got, err := fixed.Under([]byte(none))
		if err != nil || !json.Valid(got) || !strings.Contains(string(got), `"d":"action"`) {
			t.Errorf("%q: %s, %v", none, got, err)
		}
	}
}

func TestWithoutParametersTheBodyIsPassedOn(t *testing.T) {
	body := []byte(`{"a":1}`)
	got, err := Fix(false).Under(body)
	if err != nil || &got[0] != &body[0] {
		t.Errorf("%s, %v: it was copied", got, err)
	}
}

func TestLockedParametersStay(t *testing.T) {
	fixed := Fix(true, pairs(t, `[{"key":"a","value":1}]`))
	_, err := fixed.Under([]byte(`{"b":1,"\u0061":2}`))
	refused(t, "an override", err, 400, `"a"`)
	if got, err := fixed.Under([]byte(`{"b":1}`)); err != nil || string(got) != `{"a":1,"b":1}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, fixed := range []*Fixed{Fix(false), Fix(false, pairs(t, `[{"key":"p","value":1}]`))} {
		for _, body := range []string{"[1]", "1", `"a"`, "{", `{"a":1}{}`, `{"a":1,"a":2}`,
			`{"b":{"a":1,"a":2}}`, "{\"\xff\":1}", "\vnull", "{}\u00a0", `{"a":1,}`, "}", deep} {
			_, err := fixed.Under([]byte(body))
			refused(t, body[:min(len(body), 20)], err, 400, "malformed")
		}
		_, err := fixed.Under([]byte(`{"a":"` + strings.Repeat("x", MaxArguments) + `"}`))
		refused(t, "too much", err, 413, "at most")
	}
}

// What is made of arguments, as the note of a promise, is nested deeper and can be read too.
func TestArgumentsAreNotNestedTooDeep(t *testing.T) {
	for _, fixed := range []*Fixed{Fix(false), Fix(false, pairs(t, `[{"key":"p","value":1}]`))} {
		for _, open := range []string{`{"a":`, `[`} {
			most := []byte(nested(open, MaxDepth))
			if laid, err := fixed.Lay(most); err != nil || !json.Valid(laid) {
				t.Errorf("%s, as deep as can be: %v", open, err)
			}
			_, err := fixed.Lay([]byte(nested(open, MaxDepth+1)))
			refused(t, open, err, 400, "nested")
		}
		wide := `{"a":[` + strings.Repeat(`{"[":"\"{"},`, MaxDepth) + `{}]}`
		if _, err := fixed.Under([]byte(wide)); err != nil {
			t.Errorf("wide: %v", err)
		}
		_, err := fixed.Under([]byte(nested(`{"a":`, MaxDepth+1)))
		refused(t, "a body", err, 400, "nested")
	}
}

func nested(open string, depth int) string {
	closed := map[byte]string{'{': "}", '[': "]"}[open[0]]
	return strings.Repeat(open, depth) + "1" + strings.Repeat(closed, depth)
}

// Under accepts the same bodies as the standard library, which reads them as an object with the
// parameters under it.
func FuzzUnder(f *testing.F) {
	for _, body := range []string{``, `{}`, `{"a":1}`, `null`, `[]`, `{"a":{"b":[1,"\ud800"]}}`,
		"{\"\xff\":1}", `{"p":2,"q":{}}`, `{"":null}`, "\vnull"} {
		f.Add([]byte(body))
	}
	fixed := Fix(false, pairs(f, `[{"key":"p","value":{"q":1}},{"key":"r","value":null}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		laid, err := fixed.Under(body)
		if bare, bareErr := Fix(false).Under(body); (bareErr == nil) != (err == nil) ||
			bareErr == nil && !json.Valid(bare) {
			t.Fatalf("%q: %v with parameters, %v without: %s", body, err, bareErr, bare)
		}
		if !fair(t, body, err) {
			return
		}
		want := map[string]any{"p": map[string]any{"q": 1.0}, "r": nil}
		if len(body) > 0 {
			if err := json.Unmarshal(body, &want); err != nil &&
				len(strings.Trim(string(body), space)) > 0 {
				t.Fatalf("%q was taken: %v", body, err)
			}
		}
		var got map[string]any
		if err := json.Unmarshal(laid, &got); err != nil {
			t.Fatalf("%q became %q: %v", body, laid, err)
		}
		if want != nil && len(body) < 64 && len(got) != len(want) {
			t.Fatalf("%q became %q", body, laid)
		}
	})
}
