package embedded

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// Records of all sizes come, in and out of order, some of them twice, and fill many blocks. The
// store finds exactly those that came or, with a small bound, those that came last.
func TestBlocks(t *testing.T) {
	defer func(few int) { fewSkipped = few }(fewSkipped)
	fewSkipped = 3
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		path := filepath.Join(dir, "store")
		retain := rapid.SampledFrom([]int64{plenty, 8 * blockSize, 1}).Draw(rt, "retain")
		s, err := Open(path, retain, quiet)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { closeIt(t, s) }()
		var all []*store.Record // in order of arrival
		came := func(id string) bool {
			return slices.ContainsFunc(all, func(r *store.Record) bool { return r.ID == id })
		}
		record := func(t *rapid.T) *store.Record {
			i := len(all) + rapid.IntRange(-3, 3).Draw(t, "early or late")
			size := rapid.SampledFrom([]int{10, 1000, 10_000, blockSize}).Draw(t, "size")
			r := &store.Record{Indexed: store.Indexed{
				ID:        fmt.Sprintf("%04d", rapid.IntRange(max(i, 0), i+5).Draw(t, "id")),
				Name:      rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"),
				Namespace: rapid.SampledFrom([]string{"guest", "other"}).Draw(t, "namespace"),
				Start: time.UnixMilli(int64(1000 + 10*i +
					rapid.IntRange(-50, 50).Draw(t, "start"))),
			}}
			r.Body = storetest.Body(r.ID, size)
			return r
		}
		commit := func(t *rapid.T) {
			if err := s.Accept(t.Context(),
				store.Accepted{ID: store.NewID(), Invoker: "me"}); err != nil {
				t.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"finish": func(t *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(t, "records") {
					r := record(t)
					if retain != plenty && came(r.ID) {
						continue // the first one may be gone
					}
					s.Finish(r)
					if !came(r.ID) {
						all = append(all, r)
					}
				}
			},
			"commit": commit,
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
					return
				}
				namespace := rapid.SampledFrom([]string{"guest", "other"}).Draw(t, "forgotten")
				// a second record of a pending id would count as the first one after the restart
				commit(t)
				for n := 1; n > 0; {
					var err error
					if n, err = s.Forget(t.Context(), namespace); err != nil {
						t.Fatal(err)
					}
				}
				all = slices.DeleteFunc(all, func(r *store.Record) bool {
					_, err := s.Get(t.Context(), r.Namespace, r.ID)
					return r.Namespace == namespace ||
						retain != plenty && errors.Is(err, store.ErrNotFound)
				})
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(path, retain, quiet); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				there := all
				if retain != plenty { // the newest of each namespace are left
					there = slices.DeleteFunc(slices.Clone(all), oldestGone(t, s))
				}
				if len(all) > 0 && len(there) == 0 {
					t.Fatalf("none of %d records is left", len(all))
				}
				compareLists(t, s, there)
				compareShares(t, s)
			},
		})
		if err := s.Close(); err != nil {
			rt.Fatal(err)
		}
		kept(t, path)
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

// oldestGone returns a function that reports whether a record is gone from the store. It must be
// asked in order of arrival; only the first records of a namespace may be gone.
func oldestGone(t *rapid.T, s *Store) func(*store.Record) bool {
	left := map[string]bool{}
	return func(r *store.Record) bool {
		_, err := s.Get(t.Context(), r.Namespace, r.ID)
		if errors.Is(err, store.ErrNotFound) && left[r.Namespace] {
			t.Fatalf("record %s of %s is gone, older ones are not", r.ID, r.Namespace)
		}
		left[r.Namespace] = left[r.Namespace] || err == nil
		return !left[r.Namespace]
	}
}

// compareShares compares shares with a count of what every namespace holds.
func compareShares(t *rapid.T, s *Store) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.shares == nil {
		return
	}
	err := s.db.View(func(tx *bbolt.Tx) error {
		want, err := countShares(tx)
		if err != nil || want.bytes != s.shares.bytes || len(want.by) != len(s.shares.by) {
			t.Fatalf("the shares are %+v, not %+v (%v)", s.shares, want, err)
		}
		for namespace, of := range want.by {
			if got := s.shares.by[namespace]; got.bytes != of.bytes ||
				!slices.Equal(got.blocks, of.blocks) {
				t.Fatalf("the share of %s is %+v, not %+v", namespace, got, of)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// compareLists compares one random list with the model.
func compareLists(t *rapid.T, s *Store, there []*store.Record) {
	moment := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "unbounded") {
			return time.Time{}
		}
		return time.UnixMilli(int64(1000 + 10*rapid.IntRange(0, len(there)+1).Draw(t, "moment")))
	})
	f := store.Filter{
		Namespace: "guest", Name: rapid.SampledFrom([]string{"", "a", "none"}).Draw(t, "name"),
		Since: moment.Draw(t, "since"), Upto: moment.Draw(t, "upto"),
	}
	var found []string // Orders
	for _, r := range there {
		if f.Takes(&r.Indexed) {
			found = append(found, r.Order())
		}
	}
	if len(there) > 0 {
		r := rapid.SampledFrom(there).Draw(t, "record")
		got, err := s.Get(t.Context(), r.Namespace, r.ID)
		if err != nil || !bytes.Equal(got, r.Body.(store.Bytes)) {
			t.Fatalf("record %s is not the one that came first: %v", r.ID, err)
		}
	}
	if n, err := s.Count(t.Context(), f); n != len(found) || err != nil {
		t.Fatalf("%d are counted (%v), want %d", n, err, len(found))
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(b, a) })
	var want []string
	for _, order := range found {
		want = append(want, order[store.OrderPrefix:])
	}
	skip, limit := rapid.IntRange(0, 20).Draw(t, "skip"), rapid.IntRange(0, 20).Draw(t, "limit")
	got, err := storetest.List(s, t.Context(), f, skip, limit)
	want = want[min(skip, len(want)):]
	if want = want[:min(limit, len(want))]; !slices.Equal(got, want) || err != nil {
		t.Fatalf("%+v: %q (%v), want %q", f, got, err, want)
	}
}

// Open reads or refuses whatever bytes stand in place of a head and a table.
func FuzzBlock(f *testing.F) {
	b := block{key: keyOf(0)}
	for i := range 3 {
		b.add(finished(i, 5))
	}
	f.Add(b.encode(), b.table, b.records)
	f.Add([]byte{1}, []byte{1, 255, 1, 'x'}, []byte{})
	f.Fuzz(func(t *testing.T, head, table, records []byte) {
		b := block{table: table, records: records}
		if b.decode(head) == nil {
			var again block
			if err := again.decode(b.encode()); err != nil {
				t.Error(err)
			}
		}
		size := 0
		e := b.entries()
		for e.next() {
			size += len(e.value)
			startOf(e.order)
		}
		if size+len(e.after) != len(records) {
			t.Errorf("%d of %d bytes are records", size, len(records))
		}
	})
}

// A block that lost its table does not damage the others.
func TestADamagedBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path)
	for i := range 10 {
		s.Finish(finished(i, blockSize))
	}
	closeIt(t, s)
	err := update(path, func(tx *bbolt.Tx) error {
		return tx.Bucket(blocks).Bucket(keyOf(3)).Put(tableKey, []byte{0, 200})
	})
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	defer closeIt(t, s)
	for i := range 10 {
		if _, err := s.Get(t.Context(), "guest",
			finished(i, 0).ID); errors.Is(err, errDamaged) != (i == 3) {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if _, err := storetest.List(s, t.Context(),
		store.Filter{Namespace: "guest"}, 0, 10); !errors.Is(err, errDamaged) {
		t.Errorf("a list of all: %v", err)
	}
	if list, err := storetest.List(s, t.Context(),
		store.Filter{Namespace: "guest"}, 0, 5); len(list) != 5 || err != nil {
		t.Errorf("a list of the newest: %d, %v", len(list), err)
	}
}

// The clock may have been ahead when the file was written.
func TestNewIDsAreAboveThoseInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path)
	now, err := strconv.ParseInt(store.NewID()[:16], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	r := finished(0, 1)
	r.ID = fmt.Sprintf("%016x%016x", now+int64(time.Hour), 1)
	s.Finish(r)
	closeIt(t, s)
	closeIt(t, open(t, path))
	if id := store.NewID(); id <= r.ID {
		t.Errorf("%s comes after %s", id, r.ID)
	}
}

func TestRecordsAreShared(t *testing.T) {
	const retain = 2 << 20
	path := filepath.Join(t.TempDir(), "store")
	storetest.Shares(t, func() store.Store {
		s, err := Open(path, retain, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, retain)
	kept(t, path)
}
