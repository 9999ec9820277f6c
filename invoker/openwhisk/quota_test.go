package openwhisk

import (
	"errors"
	"io"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
)

// A namespace with as many entities as are allowed may change and delete them, and make no more;
// others may.
func TestANamespaceIsFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	c := newClientOf(t, patient(openStore(t, path)))
	ann := c.as("ann", access.Limits{"maxEntities": 3, "maxEntityMB": 1, "maxCodeMB": 1})
	refused := func(why string, got reached) {
		t.Helper()
		if m := c.want(413, got); !strings.Contains(m["error"].(string), why) {
			t.Errorf("%v; want %q", m["error"], why)
		}
	}
	ann.put("hello")
	ann.want(200, ann.do("PUT", "triggers/t", `{}`))
	ann.want(200, ann.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
	refused(
		"would hold 4 entities; at most 3; delete some, or have the operator raise --max-entities",
		ann.do("PUT", "packages/p", `{}`))
	c.put("hello")
	ann.want(200, ann.do("PUT", "actions/hello?overwrite=true", hello))
	ann.want(200, ann.do("DELETE", "rules/r", ""))

	large := `{"parameters":[{"key":"a","value":"` + strings.Repeat("x", 600<<10) + `"}]}`
	ann.want(200, ann.do("PUT", "packages/p", large))
	refused("--max-entity-mb", ann.do("PUT", "triggers/t?overwrite=true", large))
	code := func(size int) string {
		return strings.Replace(hello, "return args", strings.Repeat(" ", size)+"return", 1)
	}
	ann.want(200, ann.do("PUT", "actions/hello?overwrite=true", code(900<<10)))
	refused("--max-code-mb", ann.do("PUT", "actions/hello?overwrite=true", code(1100<<10)))
	if n := c.counted("fastiov_throttled_requests_total quota"); n != 3 {
		t.Errorf("%v refusals are counted", n)
	}

	// A sequence of the same after a restart.
	c.api.Close()
	if err := c.api.cfg.Store.Close(); err != nil {
		t.Fatal(err)
	}
	again := newClientOf(t, patient(openStore(t, path)))
	again.key = ann.key
	refused("4 entities", again.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
	again.want(200, again.do("DELETE", "packages/p", ""))
	again.want(200, again.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
}

func TestChangesAndReadsHaveARate(t *testing.T) {
	c := newClient(t)
	ann := c.as("ann", access.Limits{"changesPerMinute": 2, "readsPerMinute": 2})
	for method, path := range map[string]string{
		"PUT": "actions/a?overwrite=true", "DELETE": "actions/a", "POST": "rules/r",
		"GET": "actions", "HEAD": "activations",
	} {
		refused := 0
		for range 6 { // in two minutes at most, if one ends just now
			if ann.do(method, path, hello).StatusCode == 429 {
				refused++
			}
		}
		if refused < 2 {
			t.Errorf("%s: %d of 6 are refused, 2 are allowed", method, refused)
		}
		if c.do(method, path, hello).StatusCode == 429 {
			t.Errorf("%s: somebody else is refused", method)
		}
	}
	for _, limit := range []string{access.ChangesPerMinute, access.ReadsPerMinute} {
		if n := c.counted("fastiov_throttled_requests_total " + limit); n < 4 {
			t.Errorf("%v refusals are counted for %s", n, limit)
		}
	}
}

// The warm sandboxes of a namespace that is purged end.
// leaves deletes a subject, and returns a function that purges some of what it had.
func (c *client) leaves(subject string) (step func() access.Purge) {
	register := c.api.Register()
	if err := register.Delete(c.t.Context(), subject); err != nil {
		c.t.Fatal(err)
	}
	return func() access.Purge {
		p, err := register.Purge(c.t.Context(), subject)
		if err != nil {
			c.t.Fatal(err)
		}
		return p
	}
}

func TestAPurgeEndsSandboxes(t *testing.T) {
	c := newClient(t)
	c.want(200, c.do("PUT", "packages/shared", `{"publish":true}`))
	c.put("shared/hello")
	ann := c.as("ann", access.Limits{})
	ann.want(200, ann.do("POST", "/namespaces/guest/actions/shared/hello?blocking=true", "{}"))
	starts, _ := c.node.asked()
	step := c.leaves("ann")
	for !step().Done {
	}
	if id := <-c.node.stops; id != starts[0].Id {
		t.Errorf("%s was stopped, %s is of the namespace", id, starts[0].Id)
	}
	c.as("ann", access.Limits{})
}

// A user who was deleted while the body of a change came leaves nothing to the next owner of the
// namespace.
func TestAPurgeWaitsForChanges(t *testing.T) {
	for name, change := range map[string]struct{ method, path, body string }{
		"an action": {"PUT", "actions/planted", hello},
		"a rule":    {"POST", "rules/r", `{"status":"inactive"}`},
		"a fire":    {"POST", "triggers/t", "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			ann := c.as("ann", access.Limits{})
			ann.put("hello")
			ann.want(200, ann.do("PUT", "triggers/t", "{}"))
			ann.want(200, ann.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
			body, sent := io.Pipe()
			url := "http://127.0.0.1:3233/api/v1/namespaces/_/" + change.path
			request := httptest.NewRequest(change.method, url, body)
			request.SetBasicAuth(ann.key.UUID, ann.key.Secret)
			served := make(chan reached)
			go func() { served <- ann.send(request) }()
			_, _ = sent.Write([]byte(change.body[:1])) // returns when that is read
			step := c.leaves("ann")
			for range 3 {
				if p := step(); p.Done {
					t.Fatalf("purged while a change is under way: %+v", p)
				}
			}
			_, _ = sent.Write([]byte(change.body[1:]))
			sent.Close()
			<-served
			for !step().Done {
			}
			next := c.as("ann", access.Limits{})
			for _, kind := range []string{"actions", "rules", "triggers"} {
				if rows := next.rows(next.do("GET", kind, "")); len(rows) > 0 {
					t.Errorf("the successor has %s %v", kind, rows)
				}
			}
		})
	}
}

// Whose namespace was given away between the look at the key and the count is not let in.
func TestAFormerOwnerIsNotLetIn(t *testing.T) {
	c := newClient(t)
	c.as("ann", access.Limits{})
	former, err := c.api.directory.Owner("ann")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.api.directory.Enter(former); err != nil {
		t.Fatal(err)
	}
	former.Leave()
	step := c.leaves("ann")
	for !step().Done {
	}
	c.as("ann", access.Limits{})
	if err := c.api.directory.Enter(former); !errors.Is(err, access.ErrUnknown) {
		t.Errorf("the former owner: %v", err)
	}
}
