package openwhisk

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

func seeTrigger(t rapid.TB, c *catalog, namespace, name string, revision uint64, gone bool) {
	t.Helper()
	doc := store.Doc{Key: c.triggers.key(namespace, name), Revision: revision}
	if !gone {
		body, err := json.Marshal(&entity.Trigger{Common: entity.Common{Namespace: namespace, Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		doc.Body = body
	}
	if err := c.see(doc, nil); err != nil {
		t.Fatal(err)
	}
}

// A list is what a namespace has, the latest change first, whatever came and went.
func TestListsFollowTheChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCatalog(nil, nil)
		namespaces := rapid.SampledFrom([]string{"a", "b", "ab"})
		names := rapid.SampledFrom([]string{"x", "y", "p/x", "p/y", "q/x"})
		has := map[string]map[string]uint64{"a": {}, "b": {}, "ab": {}} // revisions
		for revision := range uint64(rapid.IntRange(1, 40).Draw(t, "changes")) {
			namespace, name := namespaces.Draw(t, "namespace"), names.Draw(t, "name")
			gone := rapid.Bool().Draw(t, "gone")
			seeTrigger(t, c, namespace, name, revision, gone)
			if delete(has[namespace], name); !gone {
				has[namespace][name] = revision
			}
		}
		for namespace, revisions := range has {
			for _, prefix := range []string{"", "p/"} {
				want := slices.DeleteFunc(slices.Collect(maps.Keys(revisions)), func(name string) bool {
					return !strings.HasPrefix(name, prefix)
				})
				slices.SortFunc(want, func(a, b string) int { return int(revisions[b]) - int(revisions[a]) })
				var got []string
				for _, trigger := range c.triggers.list(namespace, prefix) {
					got = append(got, trigger.Name)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, %q: %v, want %v", namespace, prefix, got, want)
				}
			}
		}
	})
}

// BenchmarkListBesideOthers lists ten triggers of a namespace while others have so many.
func BenchmarkListBesideOthers(b *testing.B) {
	for _, others := range []int{0, 100_000} {
		c := newCatalog(nil, nil)
		for n := range others {
			seeTrigger(b, c, fmt.Sprint("tenant", n%1000), fmt.Sprint("t", n), uint64(n), false)
		}
		for n := range 10 {
			seeTrigger(b, c, "guest", fmt.Sprint("t", n), uint64(n), false)
		}
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			for b.Loop() {
				if len(c.triggers.list("guest", "")) != 10 {
					b.Fatal("not ten")
				}
			}
		})
	}
}
