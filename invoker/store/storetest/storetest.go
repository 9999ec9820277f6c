// Package storetest tests what every store must do: one suite, and a model that random operations
// are compared with.
package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// Fresh empties the place where a store keeps its data, and returns how to open a store there. The
// next store may be opened once the one before is closed.
type Fresh func() (open func() store.Store)

// Run runs the suite.
func Run(t *testing.T, fresh Fresh) {
	for name, test := range map[string]func(*testing.T, store.Store){
		"documents are compared and swapped":       compareAndSwap,
		"one of many wins":                         oneOfManyWins,
		"documents that cannot be kept":            refusedDocuments,
		"watching begins with what is there":       watchBeginsWithAll,
		"changes are seen before the call returns": watchSeesOwnChanges,
		"all watchers see every key in order":      watchersSeeOrder,
		"watching ends with its context":           watchEnds,
		"code goes with its document":              codeGoesWithDocument,
		"a promise ends with its record":           promiseEndsWithRecord,
		"promises are made once":                   promisesAreMadeOnce,
		"unfinished, oldest first, by invoker":     unfinishedInOrder,
		"one record of an id":                      oneRecord,
		"what was refused is not promised":         refusals,
		"lists":                                    lists,
		"counts and lists while records come":      listsWhileRecordsCome,
		"records that cannot be kept":              refusedRecords,
		"calls that were given up":                 givenUp,
		"a namespace that is full":                 fullNamespace,
		"a quota is exact":                         quotaIsExact,
		"what is forgotten":                        forget,
		"a namespace is one subject's":             oneOwner,
		"a purge where nobody claimed":             purgeWithoutClaim,
	} {
		t.Run(name, func(t *testing.T) {
			s := fresh()()
			t.Cleanup(func() { closeStore(t, s) })
			test(t, s)
		})
	}
	t.Run("everything is there after reopening", func(t *testing.T) { reopen(t, fresh()) })
	t.Run("a closed store says so", func(t *testing.T) { afterClose(t, fresh()()) })
	t.Run("a purge", func(t *testing.T) { purge(t, fresh()) })
	t.Run("like the model", func(t *testing.T) { likeTheModel(t, fresh) })
}

func closeStore(t testing.TB, s store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func key(name string) store.Key {
	return store.Key{Kind: store.Actions, Namespace: "guest", Name: name}
}

func doc(name string, revision uint64, body string) store.Doc {
	return store.Doc{Key: key(name), Revision: revision, Body: []byte(body)}
}

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC)

// record returns the record of an activation that started that many milliseconds after t0.
func record(id, namespace, name string, ms int) *store.Record {
	start := t0.Add(time.Duration(ms) * time.Millisecond)
	return &store.Record{
		Indexed: store.Indexed{ID: id, Namespace: namespace, Name: name, Start: start},
		Body:    Body(id, 0),
	}
}

// Body returns a record's body for tests: its id and that many bytes more.
func Body(id string, more int) store.Bytes {
	return fmt.Appendf(nil, "%s\n%s", id, strings.Repeat("x", more))
}

func promised(list []store.Accepted) []string {
	found := []string{}
	for _, a := range list {
		found = append(found, a.ID)
	}
	return found
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func reopen(t *testing.T, open func() store.Store) {
	ctx := t.Context()
	s := open()
	revision := must[uint64](t)(s.Put(ctx, doc("a", 0, "{}"), []byte("code"), store.Unbounded))
	ok(t, s.Accept(ctx,
		store.Accepted{ID: "kept", Invoker: "me", At: t0, Body: []byte("body\nof two lines")}))
	ok(t, s.Accept(ctx, store.Accepted{ID: "sent", Invoker: "me", At: t0.Add(time.Second),
		Body: []byte("b")}))
	ok(t, s.Sent(ctx, "sent"))
	ok(t, s.Accept(ctx, store.Accepted{ID: "answered", Invoker: "me", At: t0}))
	for i := range 100 {
		s.Finish(record(fmt.Sprint(i), "guest", "a", i))
	}
	s.Finish(record("answered", "guest", "a", 1000))
	closeStore(t, s)

	s = open()
	defer closeStore(t, s)
	equal(t, "records", must[int](t)(s.Count(ctx, store.Filter{Namespace: "guest"})), 101)
	unfinished := must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))
	equal(t, "unfinished", promised(unfinished), "[kept sent]")
	if k, sent := unfinished[0], unfinished[1]; string(k.Body) != "body\nof two lines" ||
		!k.At.Equal(t0) || k.Invoker != "me" || k.Sent || !sent.Sent {
		t.Errorf("got %+v", unfinished)
	}
	equal(t, "code", string(must[[]byte](t)(s.Code(ctx, key("a")))), "code")
	if next := must[uint64](t)(s.Put(ctx, doc("a", revision, "{}"), nil,
		store.Unbounded)); next <= revision {
		t.Errorf("revision %d came after %d", next, revision)
	}
}

func afterClose(t *testing.T, s store.Store) {
	ctx := t.Context()
	closeStore(t, s)
	closeStore(t, s)
	s.Finish(record("late", "guest", "a", 0))
	equal(t, "lost", s.Lost(), 1)
	_, put := s.Put(ctx, doc("a", 0, "{}"), nil, store.Unbounded)
	_, code := s.Code(ctx, key("a"))
	_, unfinished := s.Unfinished(ctx, "me")
	_, list := List(s, ctx, store.Filter{Namespace: "guest"}, 0, 1)
	_, count := s.Count(ctx, store.Filter{Namespace: "guest"})
	_, get := s.Get(ctx, "guest", "x")
	watch := s.Watch(ctx, func(store.Doc) {})
	_, used := s.Used(ctx, "guest")
	_, forget := s.Forget(ctx, "guest")
	for i, err := range []error{
		used, forget, put, code, unfinished, list, count, get, watch, s.Delete(ctx, key("a"), 1),
		s.Accept(ctx, store.Accepted{ID: "x", Invoker: "me"}), s.Sent(ctx, "x"),
	} {
		if err != store.ErrClosed {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

func givenUp(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, put := s.Put(ctx, doc("a", 0, "{}"), nil, store.Unbounded)
	for _, err := range []error{
		put, s.Accept(ctx, store.Accepted{ID: "x", Invoker: "me"}), s.Sent(ctx, "x"),
		s.Delete(ctx, key("a"), 1),
	} {
		if err == nil {
			t.Error("a call that was given up succeeded")
		}
	}
	ok(t, s.Accept(t.Context(), store.Accepted{ID: "y", Invoker: "me"}))
	if list := promised(must[[]store.Accepted](t)(
		s.Unfinished(t.Context(), "me"))); !slices.Contains(list, "y") {
		t.Errorf("unfinished: %v", list)
	}
}

// List returns the ids of a list, as they stand in Bodies.
func List(
	s store.Activations, ctx context.Context, f store.Filter, skip, limit int,
) (ids []string, err error) {
	err = s.List(ctx, f, skip, limit, func(body []byte) error {
		id, _, _ := strings.Cut(string(body), "\n")
		ids = append(ids, id)
		return nil
	})
	return ids, err
}
