package openwhisk

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

func (c *client) putConductor(name string) {
	c.t.Helper()
	c.want(200, c.do("PUT", "actions/"+name,
		strings.Replace(hello, "{", `{"annotations":[{"key":"conductor","value":true}],`, 1)))
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
				return fmt.Sprintf(`{"action":"/_/s","params":{"n":%v},"state":{"at":2}}`,
					args["n"])
			}
			return fmt.Sprintf(`{"params":{"done":%v}}`, args["n"])
		},
		"a": func(args map[string]any) string {
			return fmt.Sprintf(`{"n":%v}`, args["n"].(float64)+1)
		},
	})
	m := c.want(200, c.do("POST", "actions/conduct?blocking=true", `{"n":1}`))
	if resultOf(m) != `{"done":4}` {
		t.Errorf("result: %s", resultOf(m))
	}
	if got := fmt.Sprint(c.ran()); got != "[conduct a conduct a a conduct]" {
		t.Errorf("ran %s", got)
	}
	said := notes(m)
	if said["conductor"] != true || said["topmost"] != true || said["kind"] != "sequence" ||
		len(m["logs"].([]any)) != 5 {
		t.Errorf("record: %v", m)
	}
	first := c.want(200, c.do("GET", "activations/"+m["logs"].([]any)[0].(string), ""))
	if first["cause"] != m["activationId"] || notes(first)["kind"] != "python:3" ||
		notes(first)["conductor"] != nil || notes(first)["causedBy"] != "sequence" {
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
	answers := map[string]func(map[string]any) string{"fails": says(`{"error":"no"}`),
		"deep": says(deep)}
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
		"endless": says(`{"action":"a"}`), "deep": says(`{"action":"deep"}`),
		"round": says(`{"action":"s"}`),
	})
	for name, conductors := range map[string]int{"endless": maxTurns, "deep": maxTurns,
		"round": maxTurns} {
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
