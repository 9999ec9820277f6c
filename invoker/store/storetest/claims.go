package storetest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
)

// register returns the Register of an invoker that uses the store.
func register(t *testing.T, s store.Store) *access.Register {
	t.Helper()
	r := &access.Register{Store: s, Directory: access.NewDirectory(access.Limits{})}
	ok(t, s.Watch(t.Context(), func(doc store.Doc) {
		if err := r.Directory.See(doc); err != nil {
			t.Error(err)
		}
	}))
	return r
}

// Two invokers make many subjects for one namespace at once. One subject gets it.
func oneOwner(t *testing.T, s store.Store) {
	registers := []*access.Register{register(t, s), register(t, s)}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := registers[i%2].Create(t.Context(), fmt.Sprint("subject", i), "shared",
				access.Limits{})
			// Watchers see a claim before its subject, so for a moment the namespace may look
			// abandoned.
			refused := err == nil || strings.Contains(err.Error(), access.ErrExists.Error()) ||
				strings.Contains(err.Error(), "--purge")
			if !refused {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	owners := 0
	for _, subject := range registers[0].Directory.List() {
		owners += len(subject.Namespaces)
	}
	equal(t, "owners", owners, 1)
}

// fill puts entities, records and a promise into a namespace.
func fill(t *testing.T, s store.Store, namespace string, entities, records int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range entities {
		doc := in(namespace, fmt.Sprint(i), 0, "{}")
		doc.Kind = []store.Kind{store.Actions, store.Packages, store.Triggers, store.Rules}[i%4]
		wg.Go(func() {
			if _, err := s.Put(t.Context(), doc, []byte("code"), store.Unbounded); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range records {
		s.Finish(record(fmt.Sprint(namespace, i), namespace, "a", i))
	}
	ok(t, s.Accept(t.Context(),
		store.Accepted{ID: namespace + "p", Invoker: "me", Namespace: namespace}))
}

func holds(t *testing.T, s store.Store, namespace string) string {
	t.Helper()
	promises := 0
	for _, a := range must[[]store.Accepted](t)(s.Unfinished(t.Context(), "me")) {
		if a.Namespace == namespace {
			promises++
		}
	}
	records := must[int](t)(s.Count(t.Context(), store.Filter{Namespace: namespace}))
	return fmt.Sprint(must[store.Space](t)(s.Used(t.Context(), namespace)).Entities,
		records, promises)
}

// No other subject gets the namespace of a deleted subject until a purge has emptied it. The purge
// goes step by step, an invoker that starts after a crash continues it, and a neighbouring
// namespace keeps everything.
func purge(t *testing.T, open func() store.Store) {
	const entities, records = 1100, 700
	ctx := t.Context()
	s := open()
	r := register(t, s)
	must[access.Key](t)(r.Create(ctx, "ann", "a", access.Limits{}))
	must[access.Key](t)(r.Create(ctx, "bob", "b", access.Limits{}))
	fill(t, s, "a", entities, records)
	fill(t, s, "b", 8, 9)
	refused := func(because string) {
		t.Helper()
		_, err := r.Create(ctx, "ann", "a", access.Limits{})
		if err == nil || !strings.Contains(err.Error(), because) {
			t.Errorf("given again: %v; want %q", err, because)
		}
		if _, err = r.Create(ctx, "eve", "a", access.Limits{}); err == nil {
			t.Error("given to somebody else")
		}
	}
	if _, err := r.Purge(ctx, "ann"); err == nil ||
		holds(t, s, "a") != fmt.Sprint(entities, records, 1) {
		t.Errorf("purged while there is a subject: %v, holds %s", err, holds(t, s, "a"))
	}
	ok(t, r.Delete(ctx, "ann"))
	refused("fastiov user delete \"ann\" --purge")
	if p := must[access.Purge](t)(r.Purge(ctx, "ann")); p.Done || p.Entities == 0 ||
		p.Entities == entities {
		t.Errorf("the first step: %+v", p)
	}
	refused("is being purged")

	closeStore(t, s)
	s = open()
	defer closeStore(t, s)
	r = register(t, s)
	refused("is being purged")
	done := false
	for steps := 0; !done && steps < 100; steps++ {
		done = must[access.Purge](t)(r.Purge(ctx, "ann")).Done
	}
	equal(t, "done, what a holds, what b holds",
		fmt.Sprint(done, " ", holds(t, s, "a"), " ", holds(t, s, "b")), "true 0 0 0 8 9 1")
	if _, err := r.Purge(ctx, "ann"); err == nil ||
		!strings.Contains(err.Error(), access.ErrNobody.Error()) {
		t.Errorf("purged again: %v", err)
	}
	must[access.Key](t)(r.Create(ctx, "eve", "a", access.Limits{}))
}

// A former version made no claims. The namespaces that its subjects left are protected and purged
// as well.
func purgeWithoutClaim(t *testing.T, s store.Store) {
	ctx := t.Context()
	fill(t, s, "left", 4, 5)
	r := register(t, s)
	if _, err := r.Create(ctx, "eve", "left", access.Limits{}); err == nil ||
		!strings.Contains(err.Error(), "--purge") {
		t.Errorf("given to somebody: %v", err)
	}
	for !must[access.Purge](t)(r.Purge(ctx, "left")).Done {
	}
	equal(t, "holds", holds(t, s, "left"), "0 0 0")
	must[access.Key](t)(r.Create(ctx, "eve", "left", access.Limits{}))
}
