package openwhisk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
)

func seeTrigger(t rapid.TB, c *catalog, namespace, name string, revision uint64, gone bool) {
	t.Helper()
	doc := store.Doc{Key: c.triggers.key(namespace, name), Revision: revision}
	if !gone {
		body, err := json.Marshal(&entity.Trigger{Common: entity.Common{Namespace: namespace,
			Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		doc.Body = body
	}
	if err := c.see(doc, nil); err != nil {
		t.Fatal(err)
	}
}

// A list shows a namespace's entities, the latest change first, whatever came and went.
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
				want := slices.DeleteFunc(slices.Collect(maps.Keys(revisions)),
					func(name string) bool {
						return !strings.HasPrefix(name, prefix)
					})
				slices.SortFunc(want, func(a, b string) int {
					return int(revisions[b]) - int(revisions[a])
				})
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

// The cost of requests beside 100,000 entities of others, as a multiple of their cost alone.

func BenchmarkListBesideOthers(b *testing.B) {
	besideOthers(b, func(c *client) { c.rows(c.do("GET", "triggers", "")) })
}

func BenchmarkFireBesideOthers(b *testing.B) {
	besideOthers(b, func(c *client) {
		c.want(202, c.do("POST", "triggers/t0", "{}"))
		c.api.running.Wait()
	})
}

func BenchmarkUpdateBesideOthers(b *testing.B) {
	besideOthers(b, func(c *client) {
		c.want(200, c.do("PUT", "actions/hello?overwrite=true", hello))
	})
}

// besideOthers does something in turns for a namespace that is alone and for one beside others. It
// reports the medians.
func besideOthers(b *testing.B, do func(*client)) {
	arms := [2]*client{settled(b, 0), settled(b, 100_000)}
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for i := range arms {
			arm := (n + i) % 2
			begin := time.Now()
			do(arms[arm])
			took[arm] = append(took[arm], time.Since(begin))
		}
	}
	var median [2]float64
	for arm := range took {
		slices.Sort(took[arm])
		median[arm] = float64(took[arm][len(took[arm])/2])
	}
	b.ReportMetric(median[0], "alone-ns")
	b.ReportMetric(median[1], "beside-ns")
	b.ReportMetric(median[1]/median[0], "ratio")
}

// settled is an API with ten triggers and a rule of its caller's, and entities of others.
func settled(b *testing.B, others int) *client {
	kept := unkept{openStore(b, filepath.Join(b.TempDir(), "store"))}
	unlimited := pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute}
	c := newClientOf(b, Config{Store: kept, Pool: unlimited})
	c.node.forgetful = true
	c.put("hello")
	for n := range 10 {
		c.want(200, c.do("PUT", fmt.Sprint("triggers/t", n), "{}"))
	}
	c.want(200, c.do("PUT", "rules/r", `{"trigger":"/_/t0","action":"/_/hello"}`))
	docs := map[store.Kind]store.Doc{}
	watch, end := context.WithCancel(b.Context())
	defer end()
	err := c.api.cfg.Store.Watch(watch, func(doc store.Doc) {
		docs[doc.Kind] = doc
	})
	if err != nil {
		b.Fatal(err)
	}
	for n := range others {
		doc := docs[[]store.Kind{store.Actions, store.Triggers, store.Rules}[n%3]]
		tenant, name := fmt.Sprint("tenant", n%1000), fmt.Sprint("e", n)
		doc.Body = bytes.Replace(doc.Body, []byte(`"namespace":"guest"`),
			[]byte(`"namespace":"`+tenant+`"`), 1)
		doc.Body = bytes.Replace(doc.Body, []byte(`"name":"`+doc.Name+`"`),
			[]byte(`"name":"`+name+`"`), 1)
		doc.Namespace, doc.Name = tenant, name
		c.api.see(doc)
	}
	return c
}
