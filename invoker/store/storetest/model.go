package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/store"
)

// model is the simplest store that keeps everything in memory.
type model struct {
	open     func() store.Store
	s        store.Store
	w        *seen
	docs     map[string]store.Doc
	code     map[string]string
	promises []store.Accepted // by At
	records  map[string]*store.Record
	clock    int
}

var names = rapid.SampledFrom([]string{"a", "b", "pkg/a"})

func likeTheModel(t *testing.T, fresh Fresh) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			open: fresh(), docs: map[string]store.Doc{}, code: map[string]string{},
			records: map[string]*store.Record{},
		}
		m.start(t)
		defer func() { closeStore(t, m.s) }()
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "delete": m.delete, "accept": m.accept, "sent": m.sent,
			"finish": m.finish, "forget": m.forget,
			"reopen": func(*rapid.T) { closeStore(t, m.s); m.start(t) },
			"":       m.compare,
		})
	})
}

func (m *model) start(t *testing.T) {
	m.s = m.open()
	m.w = watch(t.Context(), t, m.s)
}

func (m *model) put(t *rapid.T) {
	name := names.Draw(t, "name")
	old := m.docs[name].Revision
	if rapid.IntRange(0, 3).Draw(t, "conflict") == 0 {
		if _, err := m.s.Put(t.Context(), doc(name, old+100, "{}"), nil,
			store.Unbounded); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("no conflict: %v", err)
		}
		return
	}
	body := rapid.StringN(0, 10, 20).Draw(t, "body")
	code := rapid.SampledFrom([][]byte{nil, {}, []byte("x"), make([]byte, 70_000)}).Draw(t, "code")
	most := rapid.SampledFrom([]store.Space{{}, {Entities: 2}, {Documents: 20},
		{Code: 100_000}}).Draw(t, "most")
	then, now := m.with(name, body, code), m.used()
	revision, err := m.s.Put(t.Context(), doc(name, old, body), code, most)
	if want := most.Allow(now, then); want != nil {
		if err == nil || err.Error() != want.Error() {
			t.Fatalf("%v, want %v", err, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.docs[name] = doc(name, revision, body)
	if code != nil {
		m.code[name] = string(code)
	}
}

// with returns what the documents would take with one more or one changed document.
func (m *model) with(name, body string, code []byte) store.Space {
	then := model{docs: maps.Clone(m.docs), code: maps.Clone(m.code)}
	then.docs[name] = doc(name, 0, body)
	if code != nil {
		then.code[name] = string(code)
	}
	return then.used()
}

func (m *model) used() (u store.Space) {
	for name, d := range m.docs {
		u = u.Plus(store.Space{
			Entities: 1, Documents: int64(len(d.Body)), Code: int64(len(m.code[name])),
		})
	}
	return u
}

func (m *model) delete(t *rapid.T) {
	name := names.Draw(t, "name")
	d, found := m.docs[name]
	if err := m.s.Delete(t.Context(), key(name), d.Revision); found == (err != nil) {
		t.Fatalf("%s, there: %v: %v", name, found, err)
	}
	delete(m.docs, name)
	delete(m.code, name)
}

func (m *model) accept(t *rapid.T) {
	m.clock++
	a := store.Accepted{
		ID: fmt.Sprint(m.clock), Invoker: "me", Namespace: "guest",
		At:   t0.Add(time.Duration(m.clock) * time.Nanosecond),
		Body: []byte(names.Draw(t, "body")),
	}
	if err := m.s.Accept(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	m.promises = append(m.promises, a)
}

func (m *model) sent(t *rapid.T) {
	if len(m.promises) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.promises)-1).Draw(t, "which")
	err := m.s.Sent(t.Context(), m.promises[i].ID)
	if before := m.promises[i].Sent; before != errors.Is(err, store.ErrConflict) ||
		!before && err != nil {
		t.Fatalf("sent, where sent before is %v: %v", before, err)
	}
	m.promises[i].Sent = true
}

// finish answers a promise, or adds a record without a promise or for the second time.
func (m *model) finish(t *rapid.T) {
	m.clock++
	id := fmt.Sprint(m.clock)
	if len(m.promises) > 0 && rapid.Bool().Draw(t, "promised") {
		i := rapid.IntRange(0, len(m.promises)-1).Draw(t, "which")
		id = m.promises[i].ID
		m.promises = slices.Delete(m.promises, i, i+1)
	}
	start := rapid.IntRange(0, 100).Draw(t, "start")
	r := record(id, rapid.SampledFrom([]string{"guest", "other"}).Draw(t, "namespace"),
		names.Draw(t, "name"), start)
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		m.s.Finish(r)
	}
	m.records[id] = r
}

func (m *model) forget(t *rapid.T) {
	namespace := rapid.SampledFrom([]string{"guest", "other"}).Draw(t, "forgotten")
	for n := 1; n > 0; {
		var err error
		if n, err = m.s.Forget(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	maps.DeleteFunc(m.records, func(_ string, r *store.Record) bool {
		return r.Namespace == namespace
	})
	m.promises = slices.DeleteFunc(m.promises,
		func(a store.Accepted) bool { return a.Namespace == namespace })
}

func (m *model) compare(rt *rapid.T) {
	ctx := rt.Context()
	for _, name := range []string{"a", "b", "pkg/a"} {
		d := m.docs[name]
		if seen := m.w.last(name); string(seen.Body) != string(d.Body) ||
			d.Revision != 0 && seen.Revision != d.Revision {
			rt.Fatalf("%s was seen as %+v, want %+v", name, seen, d)
		}
		if code, err := m.s.Code(ctx, key(name)); string(code) != m.code[name] ||
			(m.code[name] == "") != errors.Is(err, store.ErrNotFound) {
			rt.Fatalf("code of %s: %q, %v, want %q", name, code, err, m.code[name])
		}
	}
	used, err := m.s.Used(ctx, "guest")
	same(rt, "used", fmt.Sprint(used, err), fmt.Sprint(m.used(), nil))
	unfinished, err := m.s.Unfinished(ctx, "me")
	same(rt, "unfinished", fmt.Sprint(unfinished, err), fmt.Sprint(m.promises, nil))

	f := store.Filter{
		Namespace: "guest", Name: rapid.SampledFrom([]string{"", "a", "pkg/a"}).Draw(rt, "filter"),
	}
	if rapid.Bool().Draw(rt, "bounded") {
		f.Since, f.Upto = t0.Add(20*time.Millisecond), t0.Add(70*time.Millisecond)
	}
	var found []*store.Record
	for _, r := range m.records {
		if f.Takes(&r.Indexed) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *store.Record) int {
		if byTime := b.Start.Compare(a.Start); byTime != 0 {
			return byTime
		}
		return strings.Compare(b.ID, a.ID)
	})
	want := []string{}
	for _, r := range found {
		want = append(want, r.ID)
	}
	count, err := m.s.Count(ctx, f)
	same(rt, "count", fmt.Sprint(count, err), fmt.Sprint(len(want), nil))
	skip, limit := rapid.IntRange(0, 5).Draw(rt, "skip"), rapid.IntRange(0, 5).Draw(rt, "limit")
	list, err := List(m.s, ctx, f, skip, limit)
	want = want[min(skip, len(want)):]
	same(rt, "list", fmt.Sprint(list, err), fmt.Sprint(want[:min(limit, len(want))], nil))
	if lost := m.s.Lost(); lost != 0 {
		rt.Fatalf("%d records lost", lost)
	}
}

func same(t *rapid.T, what, got, want string) {
	if got != want {
		t.Fatalf("%s: got %s, want %s", what, got, want)
	}
}
