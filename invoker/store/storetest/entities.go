package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
)

func compareAndSwap(t *testing.T, s store.Store) {
	ctx := t.Context()
	first := must[uint64](t)(s.Put(ctx, doc("a", 0, "1"), nil, store.Unbounded))
	second := must[uint64](t)(s.Put(ctx, doc("a", first, "2"), nil, store.Unbounded))
	if first == 0 || second <= first {
		t.Errorf("revisions %d, %d", first, second)
	}
	for what, err := range map[string]error{
		"create what exists": errorOf(s.Put(ctx, doc("a", 0, "x"), nil, store.Unbounded)),
		"replace an old revision": errorOf(s.Put(ctx, doc("a", first, "x"), []byte("x"),
			store.Unbounded)),
		"replace what is not there": errorOf(s.Put(ctx, doc("b", first, "x"), nil,
			store.Unbounded)),
		"delete an old revision": s.Delete(ctx, key("a"), first),
	} {
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Delete(ctx, key("b"), first); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("delete what is not there: %v", err)
	}
	ok(t, s.Delete(ctx, key("a"), second))
	if third := must[uint64](t)(s.Put(ctx, doc("a", 0, "3"), nil,
		store.Unbounded)); third <= second {
		t.Errorf("created anew, revision %d came after %d", third, second)
	}
}

func errorOf[T any](_ T, err error) error { return err }

func oneOfManyWins(t *testing.T, s store.Store) {
	const callers = 32
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			_, errs[i] = s.Put(t.Context(), doc("a", 0, fmt.Sprint(i)), nil, store.Unbounded)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, store.ErrConflict):
			t.Error(err)
		}
	}
	equal(t, "winners", won, 1)
}

func refusedDocuments(t *testing.T, s store.Store) {
	for _, d := range []store.Doc{
		{Key: key("no body")},
		doc("", 0, "{}"),
		doc("zero\x00byte", 0, "{}"),
		doc(string(bytes.Repeat([]byte("x"), 5000)), 0, "{}"),
	} {
		if _, err := s.Put(t.Context(), d, nil, store.Unbounded); err == nil {
			t.Errorf("%.20q was kept", d.Name)
		}
	}
	must[uint64](t)(s.Put(t.Context(), doc("well", 0, ""), nil, store.Unbounded))
}

// seen records what a watcher saw. It checks the order of each key's revisions.
type seen struct {
	t    testing.TB
	mu   sync.Mutex
	docs map[store.Key]store.Doc // the latest of each
	n    int
}

func watch(ctx context.Context, t testing.TB, s store.Store) *seen {
	t.Helper()
	w := &seen{t: t, docs: map[store.Key]store.Doc{}}
	ok(t, s.Watch(ctx, w.see))
	return w
}

func (w *seen) see(d store.Doc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.docs[d.Key]; d.Revision <= old.Revision {
		w.t.Errorf("%s: revision %d seen after %d", d.Name, d.Revision, old.Revision)
	}
	w.docs[d.Key] = d
	w.n++
}

func (w *seen) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

func (w *seen) last(name string) store.Doc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.docs[key(name)]
}

func watchBeginsWithAll(t *testing.T, s store.Store) {
	want := map[string]uint64{}
	for i := range 20 {
		name := fmt.Sprint(i)
		want[name] = must[uint64](t)(s.Put(t.Context(), doc(name, 0, name), nil, store.Unbounded))
	}
	ok(t, s.Delete(t.Context(), key("7"), want["7"]))
	delete(want, "7")
	w := watch(t.Context(), t, s)
	equal(t, "seen", w.count(), len(want))
	for name, revision := range want {
		if d := w.last(name); d.Revision != revision || string(d.Body) != name {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func watchSeesOwnChanges(t *testing.T, s store.Store) {
	w := watch(t.Context(), t, s)
	revision := must[uint64](t)(s.Put(t.Context(), doc("a", 0, "1"), nil, store.Unbounded))
	if d := w.last("a"); d.Revision != revision || string(d.Body) != "1" {
		t.Errorf("created: %+v", d)
	}
	revision = must[uint64](t)(s.Put(t.Context(), doc("a", revision, ""), []byte("code"),
		store.Unbounded))
	if d := w.last("a"); d.Revision != revision || d.Body == nil || len(d.Body) != 0 {
		t.Errorf("changed: %+v", d)
	}
	ok(t, s.Delete(t.Context(), key("a"), revision))
	if d := w.last("a"); d.Revision <= revision || d.Body != nil {
		t.Errorf("deleted: %+v", d)
	}
	equal(t, "seen", w.count(), 3)
}

func watchersSeeOrder(t *testing.T, s store.Store) {
	const watchers, keys, changes = 10, 4, 25
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			revision := uint64(0)
			for i := range changes {
				var err error
				if revision, err = s.Put(t.Context(), doc(fmt.Sprint(k), revision, fmt.Sprint(i)),
					nil, store.Unbounded); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var all []*seen
	for range watchers {
		all = append(all, watch(t.Context(), t, s))
	}
	wg.Wait()
	for _, w := range all {
		for k := range keys {
			equal(t, "last", string(w.last(fmt.Sprint(k)).Body), changes-1)
		}
	}
}

func watchEnds(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	ended, going := watch(ctx, t, s), watch(t.Context(), t, s)
	must[uint64](t)(s.Put(t.Context(), doc("a", 0, "{}"), nil, store.Unbounded))
	cancel()
	must[uint64](t)(s.Put(t.Context(), doc("b", 0, "{}"), nil, store.Unbounded))
	equal(t, "seen by who ended and who did not", []int{ended.count(), going.count()}, "[1 2]")
	if err := s.Watch(ctx, func(store.Doc) { t.Error("seen after the end") }); err == nil {
		t.Error("a watch that had ended began")
	}
}

func codeGoesWithDocument(t *testing.T, s store.Store) {
	ctx := t.Context()
	code := func() string {
		source, err := s.Code(ctx, key("a"))
		if errors.Is(err, store.ErrNotFound) {
			return "none"
		}
		ok(t, err)
		return fmt.Sprintf("%.10s, %d", source, len(source))
	}
	equal(t, "no document", code(), "none")
	revision := must[uint64](t)(s.Put(ctx, doc("a", 0, "1"), nil, store.Unbounded))
	equal(t, "no code", code(), "none")
	for _, step := range []struct {
		code []byte
		want string
	}{
		{[]byte("first"), "first, 5"},
		{nil, "first, 5"},
		{bytes.Repeat([]byte("0123456789"), 500_000), "0123456789, 5000000"},
		{[]byte{}, "none"},
		{[]byte("again"), "again, 5"},
	} {
		revision = must[uint64](t)(s.Put(ctx, doc("a", revision, "2"), step.code, store.Unbounded))
		equal(t, "code", code(), step.want)
	}
	if _, err := s.Put(ctx, doc("a", revision+1000, "3"), []byte("lost"),
		store.Unbounded); err == nil {
		t.Error("no conflict")
	}
	equal(t, "after a conflict", code(), "again, 5")
	ok(t, s.Delete(ctx, key("a"), revision))
	equal(t, "deleted", code(), "none")
	must[uint64](t)(s.Put(ctx, doc("a", 0, "4"), nil, store.Unbounded))
	equal(t, "created anew", code(), "none")
}
