package openwhisk

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

func (c *client) putSequence(name string, components ...string) reached {
	c.t.Helper()
	list, err := json.Marshal(components)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.do("PUT", "actions/"+name+"?overwrite=true",
		`{"exec":{"kind":"sequence","components":`+string(list)+`}}`)
}

func TestSequencePassesResultsOn(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/pkg", `{"parameters":[{"key":"from","value":"package"}]}`))
	c.want(200, c.do("PUT", "packages/mine",
		`{"binding":{"namespace":"_","name":"pkg"},"parameters":[{"key":"by","value":"binding"}]}`))
	c.put("a")
	c.put("pkg/b")
	c.want(200, c.do("PUT", "actions/big",
		strings.Replace(hello, "{",
			`{"limits":{"memory":512},"parameters":[{"key":"n","value":7},{"key":"own","value":1}],`,
			1)))
	c.want(200, c.putSequence("inner", "/_/mine/b", "big"))
	c.want(200, c.putSequence("outer", "a", "/guest/inner"))

	m := c.want(200, c.do("POST", "actions/outer?blocking=true", `{"n":1}`))
	if got := resultOf(m); got != `{"by":"binding","from":"package","n":1,"own":1}` {
		t.Errorf("result: %s", got)
	}
	said := notes(m)
	if said["topmost"] != true || said["kind"] != "sequence" || said["causedBy"] != nil ||
		said["conductor"] != nil || m["cause"] != nil {
		t.Errorf("annotations: %v, cause %v", said, m["cause"])
	}
	if said["limits"].(map[string]any)["memory"] != 512.0 {
		t.Errorf("limits: %v", said["limits"])
	}
	steps := m["logs"].([]any)
	if len(steps) != 2 {
		t.Fatalf("logs: %v", steps)
	}
	spent := 0.0
	for i, name := range []string{"a", "inner"} {
		step := c.want(200, c.do("GET", "activations/"+steps[i].(string), ""))
		if step["name"] != name || step["cause"] != m["activationId"] ||
			notes(step)["causedBy"] != "sequence" {
			t.Errorf("step %d: %v", i, step)
		}
		spent += step["duration"].(float64)
		if name == "inner" && (notes(step)["topmost"] != false || len(step["logs"].([]any)) != 2) {
			t.Errorf("the inner sequence: %v", step)
		}
	}
	if d := m["duration"].(float64); d < spent || d > spent+1 { // each is cut to milliseconds
		t.Errorf("duration %v of steps that took %v", d, spent)
	}
	if got := c.ran(); fmt.Sprint(got) != "[a b big]" {
		t.Errorf("ran %v", got)
	}
	c.api.running.Wait()
	owner, err := c.api.directory.Owner("guest")
	if err != nil || owner.UnderWay() != 0 {
		t.Errorf("%d are under way, %v", owner.UnderWay(), err)
	}
}

func TestSequenceAnswersInEveryManner(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.want(200, c.putSequence("s", "a", "a"))
	if got := c.do("POST", "actions/s?blocking=true&result=true",
		`{"n":1}`); got.StatusCode != 200 || string(got.body) != `{"n":1}` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
	id := c.want(202, c.do("POST", "actions/s", `{"n":2}`))["activationId"].(string)
	c.api.running.Wait()
	if m := c.want(200, c.do("GET", "activations/"+id, "")); resultOf(m) != `{"n":2}` ||
		len(m["logs"].([]any)) != 2 {
		t.Errorf("record: %v", m)
	}
	c.does(map[string]func(map[string]any) string{"a": says(`[1,2]`)})
	if got := c.do("POST", "actions/s?blocking=true", `{}`); got.StatusCode != 200 ||
		string(got.body) != `[1,2]` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
	reached, gate := c.held(false)
	late := c.want(202, c.do("POST",
		"actions/s?blocking=true&timeout=1", "{}"))["activationId"].(string)
	<-reached
	close(gate)
	c.api.running.Wait()
	c.want(200, c.do("GET", "activations/"+late, ""))
}

func TestAnErrorEndsTheSequence(t *testing.T) {
	c := newClient(t)
	for _, name := range []string{"a", "fails", "crashes", "gone"} {
		c.put(name)
	}
	c.does(map[string]func(map[string]any) string{"fails": says(`{"error":"no"}`),
		"crashes": says(`nonsense`)})
	c.want(200, c.putSequence("s1", "a", "fails", "a"))
	c.want(200, c.putSequence("s2", "crashes", "a"))
	c.want(200, c.putSequence("s3", "a", "gone", "a"))
	c.want(200, c.do("DELETE", "actions/gone", ""))
	for _, s := range []struct{ name, status, says, ran string }{
		{"s1", "application error", `{"error":"no"}`, "[a fails]"},
		{"s2", "action developer error", "valid response", "[crashes]"},
		{"s3", "application error", "there is no action /guest/gone", "[a]"},
	} {
		before := len(c.ran())
		m := c.want(502, c.do("POST", "actions/"+s.name+"?blocking=true", `{"n":1}`))
		if got := m["response"].(map[string]any)["status"]; got != s.status ||
			!strings.Contains(resultOf(m), s.says) {
			t.Errorf("%s: %v", s.name, m["response"])
		}
		if got := fmt.Sprint(c.ran()[before:]); got != s.ran {
			t.Errorf("%s ran %s, want %s", s.name, got, s.ran)
		}
	}
}

func TestBadSequencesAreRefused(t *testing.T) {
	c := newClient(t)
	c.put("a")
	other := c.as("other", access.Limits{})
	other.want(200, other.do("PUT", "packages/secret", `{}`))
	other.put("secret/a")
	c.want(200, c.putSequence("once", "a"))
	c.want(200, c.putSequence("many", strings.Split(strings.Repeat("a ", 26), " ")[:26]...))
	for _, s := range []struct {
		about      string
		name       string
		components []string
		status     int
		says       string
	}{
		{"itself", "a", []string{"a"}, 400, "contain itself"},
		{"itself through another", "a", []string{"once"}, 400, "contain itself"},
		{"nothing", "s", []string{}, 400, "empty"},
		{"what is not there", "s", []string{"a", "nobody"}, 400, "missing"},
		{"what is not for it", "s", []string{"/other/secret/a"}, 403, "not authorized"},
		{"too many", "s", strings.Split(strings.Repeat("a ", 51), " ")[:51], 400, "at most 50"},
		{"too many in all", "s", []string{"many", "many"}, 400, "more than 50"},
		{"no name", "s", []string{"/a/b/c/d"}, 400, "no name"},
	} {
		t.Run(s.about, func(t *testing.T) {
			c := *c
			c.t = t
			m := c.want(s.status, c.putSequence(s.name, s.components...))
			if text, _ := m["error"].(string); !strings.Contains(text, s.says) {
				t.Errorf("it says %q", text)
			}
		})
	}
	c.want(200, c.putSequence("s", "once", "many"))
}

// A circle that is made behind the check's back, by changing what a binding leads to, is noticed
// when it is run.
func TestACircleOfSequencesEnds(t *testing.T) {
	c := newClient(t)
	c.put("a")
	for _, name := range []string{"one", "two"} {
		c.want(200, c.do("PUT", "packages/"+name, "{}"))
	}
	c.put("one/s")
	c.want(200, c.do("PUT", "packages/way", `{"binding":{"namespace":"_","name":"one"}}`))
	c.want(200, c.putSequence("two/s", "a", "/_/way/s"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true",
		`{"binding":{"namespace":"_","name":"two"}}`))
	m := c.want(502, c.do("POST", "actions/two/s?blocking=true&result=true", "{}"))
	if text := fmt.Sprint(m["error"]); !strings.Contains(text, "too many") {
		t.Errorf("it says %q", text)
	}
	if n := len(c.ran()); n != entity.MaxComponents {
		t.Errorf("%d runs", n)
	}
	c.want(200, c.putSequence("two/t", "a"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true",
		`{"binding":{"namespace":"_","name":"one"}}`))
	c.put("one/t")
	c.want(200, c.putSequence("two/t", "/_/way/t"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true",
		`{"binding":{"namespace":"_","name":"two"}}`))
	m = c.want(502, c.do("POST", "actions/two/t?blocking=true&result=true", "{}"))
	if text := fmt.Sprint(m["error"]); !strings.Contains(text, "too deep") {
		t.Errorf("it says %q", text)
	}
	c.want(400, c.putSequence("u", "/_/two/t"))
}

// Random sequences of functions and of each other. Each one that the count allows is put, and a run
// runs the functions in their order up to the first that fails.
func TestSequencesRunInOrder(t *testing.T) {
	c := newClient(t)
	for _, name := range []string{"a", "b", "fails"} {
		c.put(name)
	}
	c.does(map[string]func(map[string]any) string{"fails": says(`{"error":"no"}`)})
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		flat := map[string][]string{"a": {"a"}, "b": {"b"}, "fails": {"fails"}}
		known := []string{"a", "b", "a", "b", "fails"}
		for i := range rapid.IntRange(1, 5).Draw(rt, "sequences") {
			name := fmt.Sprintf("s%d-%d", round, i)
			components := rapid.SliceOfN(rapid.SampledFrom(known), 1, 12).Draw(rt, name)
			var whole []string
			for _, component := range components {
				whole = append(whole, flat[component]...)
			}
			got := c.putSequence(name, components...)
			if (got.StatusCode == 200) != (len(whole) <= entity.MaxComponents) {
				rt.Fatalf("a sequence of %d: HTTP %d %s", len(whole), got.StatusCode, got.body)
			}
			if got.StatusCode == 200 {
				known, flat[name] = append(known, name), whole
			}
		}
		name := known[len(known)-1]
		want, status := flat[name], 200
		if i := slices.Index(want, "fails"); i >= 0 {
			want, status = want[:i+1], 502
		}
		before := len(c.ran())
		answer := c.do("POST", "actions/"+name+"?blocking=true", "{}")
		if got := c.ran()[before:]; answer.StatusCode != status || !slices.Equal(got, want) {
			rt.Fatalf("%s: HTTP %d, ran %v; want %d, %v", name,
				answer.StatusCode, got, status, want)
		}
	})
}
