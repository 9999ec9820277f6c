package openwhisk

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/entity"
	"github.com/fastiov/fastiov/node-agent/api"
)

// does says what the actions answer, by their names: a function of their arguments, as JSON. What is not named echoes.
func (c *client) does(functions map[string]func(args map[string]any) string) {
	c.node.run = func(_ context.Context, in *api.RunRequest) (*api.RunReply, error) {
		var run struct {
			Value json.RawMessage
			Name  string `json:"action_name"`
		}
		if err := json.Unmarshal(in.Body, &run); err != nil {
			return nil, err
		}
		f := functions[run.Name[strings.LastIndex(run.Name, "/")+1:]]
		if f == nil {
			return reply(200, string(run.Value)), nil
		}
		var args map[string]any
		_ = json.Unmarshal(run.Value, &args) // an array is none
		return reply(200, f(args)), nil
	}
}

func says(answer string) func(map[string]any) string {
	return func(map[string]any) string { return answer }
}

func (c *client) putSequence(name string, components ...string) reached {
	c.t.Helper()
	list, err := json.Marshal(components)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.do("PUT", "actions/"+name+"?overwrite=true", `{"exec":{"kind":"sequence","components":`+string(list)+`}}`)
}

func (c *client) putConductor(name string) {
	c.t.Helper()
	c.want(200, c.do("PUT", "actions/"+name, strings.Replace(hello, "{", `{"annotations":[{"key":"conductor","value":true}],`, 1)))
}

// ran are the names of the actions that the node ran.
func (c *client) ran() (names []string) {
	_, runs := c.node.asked()
	for _, in := range runs {
		var run struct {
			Name string `json:"action_name"`
		}
		if err := json.Unmarshal(in.Body, &run); err != nil {
			c.t.Fatal(err)
		}
		names = append(names, run.Name[strings.LastIndex(run.Name, "/")+1:])
	}
	return names
}

func resultOf(m map[string]any) string {
	content, _ := json.Marshal(m["response"].(map[string]any)["result"])
	return string(content)
}

func TestSequencePassesResultsOn(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/pkg", `{"parameters":[{"key":"from","value":"package"}]}`))
	c.want(200, c.do("PUT", "packages/mine", `{"binding":{"namespace":"_","name":"pkg"},"parameters":[{"key":"by","value":"binding"}]}`))
	c.put("a")
	c.put("pkg/b")
	c.want(200, c.do("PUT", "actions/big", strings.Replace(hello, "{", `{"limits":{"memory":512},"parameters":[{"key":"n","value":7},{"key":"own","value":1}],`, 1)))
	c.want(200, c.putSequence("inner", "/_/mine/b", "big"))
	c.want(200, c.putSequence("outer", "a", "/guest/inner"))

	m := c.want(200, c.do("POST", "actions/outer?blocking=true", `{"n":1}`))
	if got := resultOf(m); got != `{"by":"binding","from":"package","n":1,"own":1}` {
		t.Errorf("result: %s", got)
	}
	said := notes(m)
	if said["topmost"] != true || said["kind"] != "sequence" || said["causedBy"] != nil || said["conductor"] != nil || m["cause"] != nil {
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
		if step["name"] != name || step["cause"] != m["activationId"] || notes(step)["causedBy"] != "sequence" {
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
	if got := c.do("POST", "actions/s?blocking=true&result=true", `{"n":1}`); got.StatusCode != 200 || string(got.body) != `{"n":1}` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
	id := c.want(202, c.do("POST", "actions/s", `{"n":2}`))["activationId"].(string)
	c.api.running.Wait()
	if m := c.want(200, c.do("GET", "activations/"+id, "")); resultOf(m) != `{"n":2}` || len(m["logs"].([]any)) != 2 {
		t.Errorf("record: %v", m)
	}
	c.does(map[string]func(map[string]any) string{"a": says(`[1,2]`)})
	if got := c.do("POST", "actions/s?blocking=true", `{}`); got.StatusCode != 200 || string(got.body) != `[1,2]` {
		t.Errorf("HTTP %d %s", got.StatusCode, got.body)
	}
	reached, gate := c.held(false)
	late := c.want(202, c.do("POST", "actions/s?blocking=true&timeout=1", "{}"))["activationId"].(string)
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
	c.does(map[string]func(map[string]any) string{"fails": says(`{"error":"no"}`), "crashes": says(`nonsense`)})
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
		if got := m["response"].(map[string]any)["status"]; got != s.status || !strings.Contains(resultOf(m), s.says) {
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

// A circle that is made behind the check's back, by what a binding leads to, is noticed when it is run.
func TestACircleOfSequencesEnds(t *testing.T) {
	c := newClient(t)
	c.put("a")
	for _, name := range []string{"one", "two"} {
		c.want(200, c.do("PUT", "packages/"+name, "{}"))
	}
	c.put("one/s")
	c.want(200, c.do("PUT", "packages/way", `{"binding":{"namespace":"_","name":"one"}}`))
	c.want(200, c.putSequence("two/s", "a", "/_/way/s"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true", `{"binding":{"namespace":"_","name":"two"}}`))
	m := c.want(502, c.do("POST", "actions/two/s?blocking=true&result=true", "{}"))
	if text := fmt.Sprint(m["error"]); !strings.Contains(text, "too many") {
		t.Errorf("it says %q", text)
	}
	if n := len(c.ran()); n != entity.MaxComponents {
		t.Errorf("%d runs", n)
	}
	c.want(200, c.putSequence("two/t", "a"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true", `{"binding":{"namespace":"_","name":"one"}}`))
	c.put("one/t")
	c.want(200, c.putSequence("two/t", "/_/way/t"))
	c.want(200, c.do("PUT", "packages/way?overwrite=true", `{"binding":{"namespace":"_","name":"two"}}`))
	m = c.want(502, c.do("POST", "actions/two/t?blocking=true&result=true", "{}"))
	if text := fmt.Sprint(m["error"]); !strings.Contains(text, "too deep") {
		t.Errorf("it says %q", text)
	}
	c.want(400, c.putSequence("u", "/_/two/t"))
}

func TestASequenceIsPromisedAsOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	kept := openStore(t, path)
	first := newClientOf(t, patient(kept))
	for _, name := range []string{"a", "b", "c"} {
		first.put(name)
	}
	first.want(200, first.putSequence("s", "a", "b"))
	first.want(200, first.putSequence("unsent", "c"))
	reached, gate := make(chan struct{}, 4), make(chan struct{})
	first.node.run = func(_ context.Context, in *api.RunRequest) (*api.RunReply, error) {
		if strings.Contains(string(in.Body), "/guest/b") {
			reached <- struct{}{}
			<-gate
		}
		return reply(200, `{}`), nil
	}
	sent := first.want(202, first.do("POST", "actions/s", "{}"))["activationId"].(string)
	<-reached
	starts, gateStarts := first.held(true)
	unsent := first.want(202, first.do("POST", "actions/unsent", `{"n":2}`))["activationId"].(string)
	<-starts
	left := first.promises()
	if len(left) != 2 || left[0].ID != sent || !left[0].Sent || left[1].ID != unsent || left[1].Sent {
		t.Fatalf("promised: %+v", left)
	}

	next := newClientOf(t, patient(kept)) // as if the first had been killed here
	next.api.running.Wait()
	if left := next.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
	failed := next.want(200, next.do("GET", "activations/"+sent, ""))
	if status := failed["response"].(map[string]any)["status"]; status != "whisk internal error" || notes(failed)["kind"] != "sequence" {
		t.Errorf("what was sent: %v", failed)
	}
	ran := next.want(200, next.do("GET", "activations/"+unsent, ""))
	if resultOf(ran) != `{"n":2}` || notes(ran)["topmost"] != true {
		t.Errorf("what was not sent: %v", ran)
	}
	if got := next.ran(); fmt.Sprint(got) != "[c]" {
		t.Errorf("the next ran %v", got)
	}
	close(gate)
	close(gateStarts)
}

func TestConductorDecidesWhatIsNext(t *testing.T) {
	c := newClient(t)
	c.putConductor("conduct")
	c.put("a")
	c.want(200, c.putSequence("s", "a", "a"))
	c.does(map[string]func(map[string]any) string{
		"conduct": func(args map[string]any) string {
			switch args["at"] {
			case nil:
				return fmt.Sprintf(`{"action":"a","params":{"n":%v},"state":{"at":1}}`, args["n"])
			case 1.0:
				return fmt.Sprintf(`{"action":"/_/s","params":{"n":%v},"state":{"at":2}}`, args["n"])
			}
			return fmt.Sprintf(`{"params":{"done":%v}}`, args["n"])
		},
		"a": func(args map[string]any) string { return fmt.Sprintf(`{"n":%v}`, args["n"].(float64)+1) },
	})
	m := c.want(200, c.do("POST", "actions/conduct?blocking=true", `{"n":1}`))
	if resultOf(m) != `{"done":4}` {
		t.Errorf("result: %s", resultOf(m))
	}
	if got := fmt.Sprint(c.ran()); got != "[conduct a conduct a a conduct]" {
		t.Errorf("ran %s", got)
	}
	said := notes(m)
	if said["conductor"] != true || said["topmost"] != true || said["kind"] != "sequence" || len(m["logs"].([]any)) != 5 {
		t.Errorf("record: %v", m)
	}
	first := c.want(200, c.do("GET", "activations/"+m["logs"].([]any)[0].(string), ""))
	if first["cause"] != m["activationId"] || notes(first)["kind"] != "python:3" || notes(first)["conductor"] != nil || notes(first)["causedBy"] != "sequence" {
		t.Errorf("the conductor's own: %v", first)
	}
}

func TestWhatConductorsGetWrong(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.put("fails")
	other := c.as("other", access.Limits{})
	other.want(200, other.do("PUT", "packages/secret", `{}`))
	other.put("secret/a")
	c.put("deep")
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	answers := map[string]func(map[string]any) string{"fails": says(`{"error":"no"}`), "deep": says(deep)}
	for _, k := range []struct {
		about, answer string
		status        int
		says          string
		turns         int
	}{
		{"a number for a name", `{"action":7}`, 502, "no name: 7", 2},
		{"nothing for a name", `{"action":null}`, 502, "no name: null", 2},
		{"a bad name", `{"action":"/a/b/c/d"}`, 502, "no name", 2},
		{"what is not there", `{"action":"nobody"}`, 502, "there is no action", 2},
		{"what is not for it", `{"action":"/other/secret/a"}`, 502, "not authorized", 2},
		{"what fails", `{"action":"fails"}`, 502, `{"error":"no"}`, 2},
		{"an error of its own", `{"error":"lost","action":"a"}`, 502, "lost", 1},
		{"nonsense", `nonsense`, 502, "valid response", 1},
		{"an array", `[1]`, 200, "[1]", 1},
		{"params that are none", `{"params":3}`, 200, `{"value":3}`, 1},
		{"params with an error", `{"params":{"error":"said"}}`, 502, "said", 1},
		{"as deep as can be", `{"action":"a","params":` + strings.Repeat("[", 9_990) + strings.Repeat("]", 9_990) + `}`, 502, "", 2},
		{"an array as deep as can be", `{"action":"deep"}`, 502, "cannot be passed on", 1},
		{"a state that is none", `{"action":"a","state":3}`, 502, `{"error":"state 3"}`, 2},
	} {
		t.Run(k.about, func(t *testing.T) {
			c := *c
			c.t = t
			c.do("DELETE", "actions/conduct", "")
			c.putConductor("conduct")
			answers["conduct"] = func(args map[string]any) string {
				if args["begin"] != nil {
					return k.answer
				}
				if args["state"] != nil {
					return fmt.Sprintf(`{"error":"state %v"}`, args["state"])
				}
				return fmt.Sprintf(`{"error":%q}`, fmt.Sprint(args["error"]))
			}
			c.does(answers)
			before := len(c.ran())
			got := c.do("POST", "actions/conduct?blocking=true&result=true", `{"begin":1}`)
			if got.StatusCode != k.status || !strings.Contains(string(got.body), k.says) {
				t.Errorf("HTTP %d %s; want %d with %s", got.StatusCode, got.body, k.status, k.says)
			}
			turns := 0
			for _, name := range c.ran()[before:] {
				if name == "conduct" {
					turns++
				}
			}
			if turns != k.turns {
				t.Errorf("%d turns, want %d", turns, k.turns)
			}
		})
	}
}

func TestConductorsAreBounded(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.putConductor("endless")
	c.putConductor("deep")
	c.putConductor("round")
	c.want(200, c.putSequence("s", "round"))
	c.does(map[string]func(map[string]any) string{
		"endless": says(`{"action":"a"}`), "deep": says(`{"action":"deep"}`), "round": says(`{"action":"s"}`),
	})
	for name, conductors := range map[string]int{"endless": maxTurns, "deep": maxTurns, "round": maxTurns} {
		before := len(c.ran())
		got := c.do("POST", "actions/"+name+"?blocking=true&result=true", "{}")
		if got.StatusCode != 502 || !strings.Contains(string(got.body), "too many actions") {
			t.Errorf("%s: HTTP %d %.300s", name, got.StatusCode, got.body)
		}
		turns, components := 0, 0
		for _, ran := range c.ran()[before:] {
			if ran == name {
				turns++
			} else {
				components++
			}
		}
		if turns > conductors || components > entity.MaxComponents {
			t.Errorf("%s: %d turns and %d components", name, turns, components)
		}
	}
}

// Random sequences of functions and of each other: what is put is what the count allows, and what runs is the functions in their order up
// to the first that fails.
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
			rt.Fatalf("%s: HTTP %d, ran %v; want %d, %v", name, answer.StatusCode, got, status, want)
		}
	})
}

func TestStepsAreGivenTheCallersKey(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.want(200, c.do("PUT", "actions/b", strings.Replace(hello, "{", `{"annotations":[{"key":"provide-api-key","value":true}],`, 1)))
	c.want(200, c.putSequence("with", "a", "b"))
	c.want(200, c.putSequence("outer", "with"))
	c.want(200, c.putSequence("without", "a"))
	c.result("actions/outer", "{}")
	_, runs := c.node.asked()
	for i, want := range []bool{false, true} {
		if strings.Contains(string(runs[i].Body), guest.String()) != want {
			t.Errorf("step %d has the key: %v", i, !want)
		}
	}
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a": false, "b": true, "outer": true, "without": false} {
		on, err := c.api.component(owner, name)
		if err != nil {
			t.Fatal(err)
		}
		if c.api.mayNeedKey(owner, on) != want {
			t.Errorf("%s may need a key: %v", name, !want)
		}
	}
}
