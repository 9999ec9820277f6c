package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

func promiseEndsWithRecord(t *testing.T, s store.Store) {
	ctx := t.Context()
	unfinished := func(want string) {
		t.Helper()
		equal(t, "unfinished", promised(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))), want)
	}
	ok(t, s.Accept(ctx, store.Accepted{ID: "a", Invoker: "me", At: t0, Body: []byte("{}")}))
	unfinished("[a]")
	if _, err := s.Get(ctx, "guest", "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a promise has a record: %v", err)
	}
	ok(t, s.Sent(ctx, "a"))
	if err := s.Sent(ctx, "a"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("sent twice: %v", err)
	}
	s.Finish(record("a", "guest", "pkg/hello", 5))
	equal(t, "body", must[[]byte](t)(s.Get(ctx, "guest", "a")), Body("a", 0))
	if _, err := s.Get(ctx, "other", "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("found in another namespace: %v", err)
	}
	unfinished("[]")
	if err := s.Sent(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sent after its record: %v", err)
	}
	// makes the file keep everything before it
	ok(t, s.Accept(ctx, store.Accepted{ID: "b", Invoker: "me"}))
	unfinished("[b]")
	equal(t, "body, kept", must[[]byte](t)(s.Get(ctx, "guest", "a")), Body("a", 0))
	if _, err := s.Get(ctx, "other", "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("kept in another namespace: %v", err)
	}
	if err := s.Sent(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sent after its record: %v", err)
	}
}

func promisesAreMadeOnce(t *testing.T, s store.Store) {
	ctx := t.Context()
	ok(t, s.Accept(ctx, store.Accepted{ID: "a", Invoker: "me", At: t0, Body: []byte("first")}))
	ok(t, s.Sent(ctx, "a"))
	if err := s.Accept(ctx, store.Accepted{ID: "a", Invoker: "you", At: t0,
		Body: []byte("second")}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("promised twice: %v", err)
	}
	list := must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))
	if len(list) != 1 || !list[0].Sent || string(list[0].Body) != "first" {
		t.Errorf("got %+v", list)
	}
	s.Finish(record("done", "guest", "a", 0))
	ok(t, s.Accept(ctx, store.Accepted{ID: "done", Invoker: "me", At: t0}))
	equal(t, "unfinished", promised(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))), "[a]")
	if err := s.Accept(ctx, store.Accepted{Invoker: "me"}); err == nil {
		t.Error("promised without an id")
	}
	if err := s.Sent(ctx, "nobody's"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sent what nobody promised: %v", err)
	}
}

// Whether a promise is made before or after its refusal: there is a record and no promise.
func refusals(t *testing.T, s store.Store) {
	ctx := t.Context()
	ok(t, s.Accept(ctx, store.Accepted{ID: "before", Invoker: "me", At: t0}))
	for _, id := range []string{"before", "after"} {
		ok(t, s.Refuse(ctx, record(id, "guest", "a", 0)))
	}
	ok(t, s.Accept(ctx, store.Accepted{ID: "after", Invoker: "me", At: t0}))
	equal(t, "unfinished", promised(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))), "[]")
	equal(t, "records", must[int](t)(s.Count(ctx, store.Filter{Namespace: "guest"})), 2)
	if err := s.Broken(); err != nil {
		t.Errorf("a store that keeps everything is broken: %v", err)
	}
	closeStore(t, s)
	if err := s.Refuse(ctx, record("late", "guest", "a", 0)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("refused by a closed store: %v", err)
	}
}

func unfinishedInOrder(t *testing.T, s store.Store) {
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 30 {
		at := t0.Add(time.Duration(i*7%30) * time.Microsecond)
		wg.Go(func() {
			a := store.Accepted{
				ID: fmt.Sprintf("%02d", i*7%30), Invoker: "me", At: at, Sent: i%3 == 0,
			}
			if err := s.Accept(ctx, a); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.Finish(record("04", "guest", "a", 0))
	equal(t, "unfinished", promised(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))),
		"[00 01 02 03 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29]")
}

func oneRecord(t *testing.T, s store.Store) {
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			s.Finish(record(fmt.Sprint(i%10), "guest", "a", i%10))
			if i%5 == 0 {
				if err := s.Accept(ctx,
					store.Accepted{ID: fmt.Sprint("p", i), Invoker: "me"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ok(t, s.Accept(ctx, store.Accepted{ID: "end", Invoker: "me"}))
	s.Finish(record("3", "guest", "a", 3))
	equal(t, "records", must[int](t)(s.Count(ctx, store.Filter{Namespace: "guest"})), 10)
	equal(t, "list", must[[]string](t)(List(s, ctx, store.Filter{Namespace: "guest"}, 0, 100)),
		"[9 8 7 6 5 4 3 2 1 0]")
}

func lists(t *testing.T, s store.Store) {
	for _, r := range []*store.Record{
		record("0", "guest", "a", 0), record("1", "guest", "b", 1000),
		record("2", "guest", "pkg/a", 2000), record("3", "guest", "a", 3000),
		record("4", "guest", "aa", 3000), record("5", "other", "a", 4000),
		record("6", "gues", "ta", 5000), record("old", "guest", "a", -80*365*24*3600*1000),
	} {
		s.Finish(r)
	}
	at := func(ms int) time.Time {
		return t0.Truncate(time.Millisecond).Add(time.Duration(ms) * time.Millisecond)
	}
	// first while they are pending, then from the disk
	for range 2 {
		for _, c := range []struct {
			f           store.Filter
			skip, limit int
			want        string
			count       int
		}{
			{store.Filter{Namespace: "guest"}, 0, 10, "[4 3 2 1 0 old]", 6},
			{store.Filter{Namespace: "guest"}, 1, 2, "[3 2]", 6},
			{store.Filter{Namespace: "guest"}, 5, 10, "[old]", 6},
			{store.Filter{Namespace: "guest"}, 6, 10, "[]", 6},
			{store.Filter{Namespace: "guest"}, 99, 10, "[]", 6},
			{store.Filter{Namespace: "guest"}, 0, 0, "[]", 6},
			{store.Filter{Namespace: "guest"}, 0, int(^uint(0) >> 1), "[4 3 2 1 0 old]", 6},
			{store.Filter{Namespace: "guest", Name: "a"}, 0, 10, "[3 0 old]", 3},
			{store.Filter{Namespace: "guest", Name: "pkg/a"}, 0, 10, "[2]", 1},
			{store.Filter{Namespace: "guest", Name: "pkg"}, 0, 10, "[]", 0},
			{store.Filter{Namespace: "nobody"}, 0, 10, "[]", 0},
			{store.Filter{Namespace: "other"}, 0, 10, "[5]", 1},
			{store.Filter{Namespace: "guest", Since: at(1000)}, 0, 10, "[4 3 2 1]", 4},
			{store.Filter{Namespace: "guest", Since: at(1001)}, 0, 10, "[4 3 2]", 3},
			{store.Filter{Namespace: "guest", Upto: at(2000)}, 0, 10, "[2 1 0 old]", 4},
			{store.Filter{Namespace: "guest", Upto: at(1999)}, 0, 10, "[1 0 old]", 3},
			{store.Filter{Namespace: "guest", Since: at(1), Upto: at(3000)}, 1, 2, "[3 2]", 4},
			{store.Filter{Namespace: "guest", Name: "a", Since: at(1)}, 0, 10, "[3]", 1},
		} {
			what := fmt.Sprintf("%+v skip %d limit %d", c.f, c.skip, c.limit)
			equal(t, what, must[[]string](t)(List(s, t.Context(), c.f, c.skip, c.limit)), c.want)
			equal(t, what+" count", must[int](t)(s.Count(t.Context(), c.f)), c.count)
		}
		_ = s.Accept(t.Context(), store.Accepted{ID: "p", Invoker: "me"})
	}
}

// A list and a count that run while records move to the disk miss none and count none twice.
func listsWhileRecordsCome(t *testing.T, s store.Store) {
	ctx, f := t.Context(), store.Filter{Namespace: "guest"}
	const n = 400
	for i := range n {
		s.Finish(record(fmt.Sprint(i), "guest", "a", i))
		if i%10 == 0 {
			equal(t, "count", must[int](t)(s.Count(ctx, f)), i+1)
			list := must[[]string](t)(List(s, ctx, f, 0, n))
			if len(list) != i+1 || list[0] != fmt.Sprint(i) || list[i] != "0" {
				t.Fatalf("after %d: %v", i, list)
			}
			must[[]byte](t)(s.Get(ctx, "guest", fmt.Sprint(i)))
		}
	}
}

func refusedRecords(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, id := range []string{"well", "zero", "long", "empty"} {
		ok(t, s.Accept(ctx, store.Accepted{ID: id, Invoker: "me"}))
	}
	s.Finish(record("", "guest", "a", 0))
	s.Finish(record("zero", "gu\x00est", "a", 0))
	s.Finish(record("long", "guest", strings.Repeat("x", 1<<16), 0))
	empty := record("empty", "guest", "a", 0)
	empty.Body = store.Bytes(nil)
	s.Finish(empty)
	s.Finish(record("well", "guest", "a", 0))
	ok(t, s.Accept(ctx, store.Accepted{ID: "next", Invoker: "me"}))
	must[[]byte](t)(s.Get(ctx, "guest", "well"))
	equal(t, "unfinished", promised(must[[]store.Accepted](t)(s.Unfinished(ctx, "me"))), "[next]")
	closeStore(t, s) // no record is pending any more
	equal(t, "lost", s.Lost(), 4)
}
