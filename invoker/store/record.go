package store

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// Indexed is what a finished activation is found by.
type Indexed struct {
	ID        string
	Namespace string
	Name      string // by which lists find it
	Start     time.Time
}

// A Record is what is kept of a finished activation. Its body is for whoever wrote it: the store does
// not look into it.
type Record struct {
	Indexed
	Body []byte
}

// Size returns about what the record takes in memory.
func (r *Record) Size() int {
	const fixed = 512
	return fixed + len(r.Body)
}

// Check refuses what no store can keep.
func (r *Record) Check() error {
	if len(r.Body) == 0 {
		return errors.New("a record without a body")
	}
	return CheckNames(r.ID, r.Namespace, r.Name)
}

// A Filter chooses records: of one namespace, of one name where Name is set, that started within
// [Since, Upto], to the millisecond.
type Filter struct {
	Namespace   string
	Name        string
	Since, Upto time.Time // zero: unbounded
}

// Takes tells whether the filter chooses the record.
func (f Filter) Takes(i *Indexed) bool {
	if i.Namespace != f.Namespace || f.Name != "" && i.Name != f.Name {
		return false
	}
	low, high := f.Range()
	order := i.Order()
	return low <= order && order < high
}

// Order sorts records as bytes: by start, and by id where that is equal. Its length is OrderPrefix and
// the id's.
func (i *Indexed) Order() string { return instant(nanoseconds(i.Start)) + i.ID }

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
