package embedded

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// allocated returns how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A list counts the records that it skips and does not collect them, so the cost is the same for
// few and many.
func TestSkippingCostsLittle(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	defer closeIt(t, s)
	const records = 60_000
	for i := range records {
		r := finished(i, 10)
		r.Start = r.Start.Add(time.Duration(i) * time.Millisecond)
		s.Finish(r)
	}
	if err := s.Accept(t.Context(), store.Accepted{ID: store.NewID(), Invoker: "me"}); err != nil {
		t.Fatal(err)
	}
	f := store.Filter{Namespace: "guest"}
	for _, c := range []struct{ skip, want int }{{0, 30}, {records / 2, 30}, {records - 1, 1},
		{records, 0}, {1 << 31, 0}} {
		bytes := allocated(func() {
			list, err := storetest.List(s, t.Context(), f, c.skip, 30)
			if err != nil || len(list) != c.want ||
				c.want > 0 && list[0] != finished(records-1-c.skip, 0).ID {
				t.Errorf("skip %d: %d are listed, %v", c.skip, len(list), err)
			}
		})
		if bytes > 1<<20 {
			t.Errorf("skip %d: %d KiB are asked for", c.skip, bytes>>10)
		}
	}
}

// If all records to be skipped started outside the filter's time, the list is empty.
func TestSkippingKeepsToTheTime(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	defer closeIt(t, s)
	defer func(few int) { fewSkipped = few }(fewSkipped)
	fewSkipped = 3
	for i := range 2 * fewSkipped {
		late := finished(i, 10)
		late.Start = time.Unix(2000, 0)
		s.Finish(late)
	}
	if err := s.Accept(t.Context(), store.Accepted{ID: store.NewID(), Invoker: "me"}); err != nil {
		t.Fatal(err)
	}
	f := store.Filter{Namespace: "guest", Upto: time.Unix(1000, 0)}
	if list, err := storetest.List(s, t.Context(), f, fewSkipped+1, 30); len(list) > 0 ||
		err != nil {
		t.Errorf("%d are listed, %v", len(list), err)
	}
}

// A list holds one portion of large records in memory, and has no transaction open while its reader
// reads.
func TestALongListIsReadInPortions(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"))
	defer closeIt(t, s)
	const records = 40
	for i := range records {
		s.Finish(finished(i, store.Portion))
	}
	if err := s.Accept(t.Context(), store.Accepted{ID: store.NewID(), Invoker: "me"}); err != nil {
		t.Fatal(err)
	}
	enough, seen := errors.New("enough"), 0
	bytes := allocated(func() {
		err := s.List(t.Context(), store.Filter{Namespace: "guest"}, 0, 200, func([]byte) error {
			if n := s.db.Stats().OpenTxN; n != 0 {
				t.Errorf("%d transactions are open while a record is shown", n)
			}
			if seen++; seen == 3 {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Error(err)
		}
	})
	if bytes > 8*store.Portion {
		t.Errorf("%d MiB are asked for to show three records of 1 MiB", bytes>>20)
	}
}
