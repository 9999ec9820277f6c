package openwhisk

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/node-agent/api"
)

// does sets what the actions answer, by their names: a function of their arguments, as JSON. An
// action that is not named echoes.
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
		_ = json.Unmarshal(run.Value, &args) // An array leaves them empty.
		return reply(200, f(args)), nil
	}
}

func says(answer string) func(map[string]any) string {
	return func(map[string]any) string { return answer }
}

// ran returns the names of the actions that the node ran.
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
	unsent := first.want(202, first.do("POST",
		"actions/unsent", `{"n":2}`))["activationId"].(string)
	<-starts
	next, failed, ran := first.succeeded(patient(kept), sent, unsent)
	if notes(failed)["kind"] != "sequence" {
		t.Errorf("what was sent: %v", failed)
	}
	if resultOf(ran) != `{"n":2}` || notes(ran)["topmost"] != true {
		t.Errorf("what was not sent: %v", ran)
	}
	if got := next.ran(); fmt.Sprint(got) != "[c]" {
		t.Errorf("the next ran %v", got)
	}
	close(gate)
	close(gateStarts)
}

func TestStepsAreGivenTheCallersKey(t *testing.T) {
	c := newClient(t)
	c.put("a")
	c.want(200, c.do("PUT", "actions/b", strings.Replace(hello, "{",
		`{"annotations":[{"key":"provide-api-key","value":true}],`, 1)))
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
	for name, want := range map[string]bool{"a": false, "b": true, "outer": true,
		"without": false} {
		on, err := c.api.component(owner, name)
		if err != nil {
			t.Fatal(err)
		}
		if c.api.mayNeedKey(owner, on) != want {
			t.Errorf("%s may need a key: %v", name, !want)
		}
	}
}

// Only a sequence has components. Those that another action names are not kept, and those that a
// store has from before are not looked at: they could name the action itself.
func TestOnlyASequenceHasComponents(t *testing.T) {
	c := newClient(t)
	put := c.want(200, c.do("PUT", "actions/x",
		`{"exec":{"kind":"blackbox","image":"a","components":["x"]}}`))
	if got := put["exec"].(map[string]any)["components"]; got != nil {
		t.Errorf("a blackbox has the components %v", got)
	}
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	on, err := c.api.component(owner, "x")
	if err != nil {
		t.Fatal(err)
	}
	kept := *on
	kept.Action = &entity.Action{Common: on.Common, Exec: on.Exec, Limits: on.Limits}
	kept.Exec.Components = []string{"/guest/x", "/guest/with"}
	c.want(200, c.do("PUT", "actions/with", strings.Replace(hello, "{",
		`{"annotations":[{"key":"provide-api-key","value":true}],`, 1)))
	if c.api.mayNeedKey(owner, &kept) {
		t.Error("the components of a blackbox are looked at")
	}
	c.want(202, c.do("POST", "actions/x", "{}"))
}
