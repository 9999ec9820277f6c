package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
)

func in(namespace, name string, revision uint64, body string) store.Doc {
	return store.Doc{
		Key:      store.Key{Kind: store.Rules, Namespace: namespace, Name: name},
		Revision: revision, Body: []byte(body),
	}
}

// A full namespace keeps what it has, may shrink it, and does not affect other namespaces.
func fullNamespace(t *testing.T, s store.Store) {
	ctx := t.Context()
	most := store.Space{Entities: 2, Documents: 10, Code: 6}
	a := must[uint64](t)(s.Put(ctx, in("ann", "a", 0, "1234"), []byte("code"), most))
	b := must[uint64](t)(s.Put(ctx, in("ann", "b", 0, "1234"), nil, most))
	refused := func(what string, then int64, err error) {
		t.Helper()
		var full *store.Full
		if !errors.As(err, &full) || full.What != what || full.Then != then {
			t.Errorf("got %v, want %d %s", err, then, what)
		}
	}
	refused(store.ManyEntities, 3, errorOf(s.Put(ctx, in("ann", "c", 0, ""), nil, most)))
	refused(store.LargeEntities, 11, errorOf(s.Put(ctx, in("ann", "b", b, "1234567"), nil, most)))
	refused(store.MuchCode, 7, errorOf(s.Put(ctx, in("ann", "b", b, ""), []byte("123"), most)))
	must[uint64](t)(s.Put(ctx, in("bob", "c", 0, "1234567890"), []byte("codes"), most))
	equal(t, "used", must[store.Space](t)(s.Used(ctx, "ann")), store.Space{
		Entities: 2, Documents: 8, Code: 4,
	})

	// After its bound was lowered, a namespace may only shrink.
	lower := store.Space{Entities: 1, Documents: 2, Code: 1}
	refused(store.LargeEntities, 9, errorOf(s.Put(ctx, in("ann", "b", b, "12345"), nil, lower)))
	must[uint64](t)(s.Put(ctx, in("ann", "b", b, "123"), nil, lower))
	a = must[uint64](t)(s.Put(ctx, in("ann", "a", a, "1234"), []byte("c"), lower))
	ok(t, s.Delete(ctx, in("ann", "a", 0, "").Key, a))
	equal(t, "used", must[store.Space](t)(s.Used(ctx, "ann")),
		store.Space{Entities: 1, Documents: 3})
	must[uint64](t)(s.Put(ctx, in("ann", "c", 0, "1234567"), []byte("123456"), most))
	equal(t, "nobody", must[store.Space](t)(s.Used(ctx, "nobody")), store.Space{})
}

// Of many Puts at once, as many succeed as there is room for.
func quotaIsExact(t *testing.T, s store.Store) {
	const callers, room = 32, 7
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			doc := in("ann", fmt.Sprint(i), 0, "{}")
			_, errs[i] = s.Put(t.Context(), doc, nil, store.Space{Entities: room})
		})
	}
	wg.Wait()
	kept := 0
	for _, err := range errs {
		var full *store.Full
		switch {
		case err == nil:
			kept++
		case !errors.As(err, &full):
			t.Error(err)
		}
	}
	equal(t, "kept", kept, room)
}

// Forget drops the records and promises of a namespace, pending or kept, and nothing else.
func forget(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i := range 300 {
		id := fmt.Sprintf("%04d", i)
		namespace := []string{"ann", "bob"}[i%3/2]
		if i%10 == 0 {
			ok(t, s.Accept(ctx,
				store.Accepted{ID: "p" + id, Invoker: "me", Namespace: namespace, At: t0}))
		}
		r := record(id, namespace, "a", i)
		r.Body = Body(id, 1000)
		s.Finish(r)
	}
	count := func(namespace string) int {
		return must[int](t)(s.Count(ctx, store.Filter{Namespace: namespace}))
	}
	for must[int](t)(s.Forget(ctx, "ann")) > 0 {
	}
	equal(t, "left", []int{count("ann"), count("bob")}, "[0 100]")
	equal(t, "unfinished", len(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))), 10)
	if _, err := s.Get(ctx, "ann", "0000"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a forgotten record: %v", err)
	}
	for i := range 100 {
		s.Finish(record(fmt.Sprintf("%04d", 1000+i), "ann", "a", 1000+i))
	}
	equal(t, "after that", []int{count("ann"), count("bob")}, "[100 100]")
	for must[int](t)(s.Forget(ctx, "ann"))+must[int](t)(s.Forget(ctx, "bob")) > 0 {
	}
	equal(t, "left of all", []int{count("ann"), count("bob")}, "[0 0]")
	s.Finish(record("0000", "ann", "a", 0))
	ok(t, s.Accept(ctx, store.Accepted{ID: "end", Invoker: "me"}))
	equal(t, "begun anew", must[[]string](t)(List(s, ctx, store.Filter{Namespace: "ann"}, 0, 10)),
		"[0000]")
}

// Shares tests a store that retains few records, about retain bytes. A namespace with few calls
// keeps its records, however much others call, and a single namespace has all the room.
func Shares(t *testing.T, open func() store.Store, retain int) {
	const size = 2000
	ctx := t.Context()
	s := open()
	n := 0
	finish := func(namespace string) {
		r := record(fmt.Sprintf("%032d", n), namespace, "a", n)
		r.Body = Body(r.ID, size)
		s.Finish(r)
		n++
	}
	left := func(namespace string) []string {
		return must[[]string](t)(List(s, ctx, store.Filter{Namespace: namespace}, 0, 1<<20))
	}
	restart := func() {
		closeStore(t, s)
		s = open()
	}
	const quiet = 20
	for i := range 10 * retain / size {
		if i < 3*quiet && i%3 == 0 {
			finish("quiet")
		}
		finish("loud")
		if i%500 == 250 {
			restart()
		}
	}
	restart() // no record is pending
	equal(t, "the quiet one's records", len(left("quiet")), quiet)
	loud := left("loud")
	if room := retain / size; len(loud) > room || len(loud) < room/2 {
		t.Errorf("the loud one has %d records, there is room for %d", len(loud), room)
	}
	equal(t, "the oldest that is left of the loud one", loud[len(loud)-1],
		fmt.Sprintf("%032d", n-len(loud)))

	// A second busy namespace takes its half from the first, but nothing from the quiet one.
	for range 10 * retain / size {
		finish("second")
		finish("loud")
	}
	restart()
	a, b := len(left("loud")), len(left("second"))
	equal(t, "the quiet one's records", len(left("quiet")), quiet)
	if a > 2*b || b > 2*a || a+b < retain/size/2 {
		t.Errorf("the loud ones have %d and %d records", a, b)
	}
	closeStore(t, s)
}
