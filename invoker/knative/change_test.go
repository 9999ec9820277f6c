package knative

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// A pass that finds all as it is writes nothing, also where it sets a condition once more: else
// each second would bring an event and a write.
func TestAPassThatChangesNothing(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/broken"))
	h.ready("hello", "False")
	version := func() string {
		return h.api.world.get(configurations, "ann", "hello").object.GetResourceVersion()
	}
	was := version()
	h.until("it is at rest", func() bool {
		former := was
		time.Sleep(1100 * time.Millisecond) // what times are told by
		was = version()
		return was == former
	})
	at := ref{configurations, name{"ann", "hello"}}
	if err := h.api.reconcile.reconcile(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if now := version(); now != was {
		t.Errorf("the pass has made version %s of %s", now, was)
	}
}

func TestSame(t *testing.T) {
	one := `{"a":1,"lastTransitionTime":"2026-01-01T00:00:00Z","b":"c"}`
	for other, want := range map[string]bool{
		one: true,
		strings.Replace(one, "00:00:00", "11:11:11", 1): true,
		strings.Replace(one, `"c"`, `"d"`, 1):           false,
		strings.Replace(one, `"a":1`, `"a":2`, 1):       false,
		`{"a":1,"b":"c"}`:                               false,
	} {
		if same([]byte(one), []byte(other)) != want || same([]byte(other), []byte(one)) != want {
			t.Errorf("%s and %s: want %v", one, other, want)
		}
	}
}

// More containers or volumes than Knative's rules are asked about are refused at once.
func TestVeryManyContainers(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	for _, many := range []string{"containers", "initContainers", "volumes"} {
		body := fmt.Sprintf(`{"metadata":{"name":"a"},"spec":{"template":{"spec":{%q:[%s{}]}}}}`,
			many, strings.Repeat("{},", 100_000))
		begun := time.Now()
		code, said := h.ask("POST", objects+"services?dryRun=All", "application/json", body)
		if code != 422 || !strings.Contains(said, "must have at most 512 items") {
			t.Errorf("%s: %d %.300s", many, code, said)
		}
		t.Logf("%s: answered after %s", many, time.Since(begun))
	}
}
