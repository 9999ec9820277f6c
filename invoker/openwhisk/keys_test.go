package openwhisk

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
)

// A subject's key and limits change while the invoker runs, and nothing else of it does.
func TestKeysAndLimitsChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "promises.key")
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	cfg := patient(kept)
	cfg.Seal = seal(t, file)
	c := newClientOf(t, cfg)
	register := c.api.Register()
	ann := c.as("ann", access.Limits{"firesPerMinute": 5})
	ann.want(200, ann.do("PUT", "actions/keyed", wantsKey))
	ann.want(200, ann.do("PUT", "triggers/t", "{}"))

	set := func(limits access.Limits) {
		t.Helper()
		if err := register.Limit(t.Context(), "ann", limits); err != nil {
			t.Fatal(err)
		}
	}
	set(access.Limits{"invocationsPerMinute": 0, "maxEntities": 0, "maxCodeMB": 0})
	told := ann.want(200, ann.do("GET", "limits", ""))
	if told["invocationsPerMinute"] != 0.0 || told["maxEntities"] != 0.0 ||
		told["firesPerMinute"] != 5.0 ||
		told["readsPerMinute"] != float64(access.Defaults.ReadsPerMinute) {
		t.Errorf("limits: %v", told)
	}
	ann.want(429, ann.do("POST", "actions/keyed", "{}"))
	if got := ann.do("PUT", "triggers/u", "{}"); got.StatusCode < 400 {
		t.Errorf("an entity where none is allowed: HTTP %d", got.StatusCode)
	}
	set(access.Limits{"firesPerMinute": 0})
	ann.want(429, ann.do("POST", "triggers/t", "{}"))
	for _, wrong := range []access.Limits{{"firesPerMinute": -1}, {"maxActionMemory": 0},
		{"fires": 1}} {
		if err := register.Limit(t.Context(), "ann", wrong); err == nil {
			t.Errorf("%v was set", wrong)
		}
	}
	if err := register.Unlimit(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}

	reached, gate := c.held(true)
	t.Cleanup(func() { close(gate) })
	promised := ann.want(202, ann.do("POST", "actions/keyed", "{}"))["activationId"].(string)
	<-reached
	old := ann.key
	var err error
	if ann.key, err = register.Revoke(t.Context(), "ann", ""); err != nil {
		t.Fatal(err)
	}
	ann.want(200, ann.do("GET", "actions/keyed", ""))
	revoked := *ann
	revoked.key = old
	revoked.want(401, revoked.do("GET", "actions/keyed", ""))

	// Calls that were promised before run, with the key that they were promised with.
	n := next(t, kept, seal(t, file))
	_, runs := n.node.asked()
	var run struct {
		APIKey string `json:"api_key"`
	}
	if len(runs) != 1 {
		t.Fatalf("%d runs", len(runs))
	}
	if err := json.Unmarshal(runs[0].Body, &run); err != nil || run.APIKey != old.String() {
		t.Errorf("the run was given the key %q, %v", run.APIKey, err)
	}
	n.key = ann.key
	n.want(200, n.do("GET", "activations/"+promised, ""))
	n.key = old
	n.want(401, n.do("GET", "activations/"+promised, ""))
}
