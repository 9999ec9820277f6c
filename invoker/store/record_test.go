package store

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An Order lies in the filter's Range exactly if the filter takes the record, and Orders sort as
// times do.
func TestOrderAndRange(t *testing.T) {
	moments := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "zero") {
			return time.Time{}
		}
		return time.Unix(0, rapid.Int64Range(0, 5_000_000).Draw(t, "ns"))
	})
	rapid.Check(t, func(t *rapid.T) {
		f := Filter{Since: moments.Draw(t, "since"), Upto: moments.Draw(t, "upto")}
		a := &Indexed{
			ID:    rapid.SampledFrom([]string{"a", "b"}).Draw(t, "a"),
			Start: moments.Draw(t, "start of a"),
		}
		b := &Indexed{
			ID:    rapid.SampledFrom([]string{"a", "b"}).Draw(t, "b"),
			Start: moments.Draw(t, "start of b"),
		}
		ms := max(a.Start.UnixMilli(), 0)
		want := (f.Since.IsZero() || ms >= f.Since.UnixMilli()) &&
			(f.Upto.IsZero() || ms <= f.Upto.UnixMilli())
		if f.Takes(a) != want {
			t.Fatalf("%v in [%v, %v]: %v", a.Start, f.Since, f.Upto, !want)
		}
		since1970 := func(at time.Time) time.Duration { return max(at.Sub(time.Unix(0, 0)), 0) }
		byTime := since1970(a.Start) - since1970(b.Start)
		if order := strings.Compare(a.Order(), b.Order()); byTime > 0 && order <= 0 ||
			byTime == 0 && order != strings.Compare(a.ID, b.ID) {
			t.Fatalf("%v %v sort as %d", a.Start, b.Start, order)
		}
	})
}
