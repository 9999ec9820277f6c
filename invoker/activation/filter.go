package activation

import (
	"encoding/binary"
	"math"
	"strings"
	"time"
)

// A Filter chooses records: of one namespace, of one action where Name is set, that started within [Since, Upto], to the millisecond
// that clients see.
type Filter struct {
	Namespace   string
	Name        string    // as ListName gives it
	Since, Upto time.Time // zero: unbounded
}

// Takes tells whether the filter chooses r.
func (f Filter) Takes(r *Record) bool {
	if r.Namespace != f.Namespace || f.Name != "" && r.ListName() != f.Name {
		return false
	}
	low, high := f.Range()
	order := r.Order()
	return low <= order && order < high
}

// ListName is the name by which lists find the record: package/action for an action in a package, else its plain name.
func (r *Record) ListName() string {
	_, local, _ := strings.Cut(r.Path, "/")
	if pkg, name, found := strings.Cut(local, "/"); found && !strings.Contains(name, "/") {
		return pkg + "/" + r.Name
	}
	return r.Name
}

// Order sorts records as bytes: by start, and by id where that is equal. Its length is OrderPrefix and the id's.
func (r *Record) Order() string { return instant(nanoseconds(r.Start)) + r.ID }

// OrderPrefix is how many bytes of an Order stand before the id.
const OrderPrefix = 8

// Range bounds the Orders of what the filter takes: from low up to, but without, high.
func (f Filter) Range() (low, high string) {
	const ms = uint64(time.Millisecond)
	last := uint64(math.MaxUint64)
	if !f.Upto.IsZero() {
		last = (nanoseconds(f.Upto)/ms + 1) * ms
	}
	return instant(nanoseconds(f.Since) / ms * ms), instant(last)
}

func instant(ns uint64) string { return string(binary.BigEndian.AppendUint64(nil, ns)) }

// nanoseconds since 1970; what is before that, as the zero time, is 0.
func nanoseconds(t time.Time) uint64 {
	if t.Unix() < 0 {
		return 0
	}
	return uint64(t.UnixNano())
}
