package store

import (
	"encoding"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// Indexed holds the fields by which a finished activation is found.
type Indexed struct {
	ID        string
	Namespace string
	Name      string // lists find the activation by it
	Start     time.Time
}

// A Record holds what a store keeps of a finished activation. The store does not look into its
// body. It asks for the body's bytes when it writes or shows them. So Finish copies nothing, and
// its caller must not change the body any more.
type Record struct {
	Indexed
	Body Body
}

// A Body holds what its writer keeps of an activation.
type Body interface {
	encoding.BinaryAppender
	Size() int // about how many bytes of memory it takes
}

// Bytes is a body that is encoded already.
type Bytes []byte

// AppendBinary implements encoding.BinaryAppender.
func (b Bytes) AppendBinary(to []byte) ([]byte, error) { return append(to, b...), nil }

// Size implements Body.
func (b Bytes) Size() int { return len(b) }

// Size returns about how much memory the record takes.
func (r *Record) Size() int {
	const fixed = 512
	return fixed + r.Body.Size()
}

// Append appends the bytes of the record's body to b. It refuses a record that no store can keep.
func (r *Record) Append(b []byte) ([]byte, error) {
	if err := CheckNames(r.ID, r.Namespace, r.Name); err != nil {
		return b, err
	}
	longer, err := r.Body.AppendBinary(b)
	if err == nil && len(longer) == len(b) {
		err = errors.New("a record without a body")
	}
	return longer, err
}

// A Filter chooses records: of one namespace, of one name where Name is set, that started within
// [Since, Upto], to the millisecond.
type Filter struct {
	Namespace   string
	Name        string
	Since, Upto time.Time // zero: unbounded
}

// Takes reports whether the filter chooses the record.
func (f Filter) Takes(i *Indexed) bool {
	if i.Namespace != f.Namespace || f.Name != "" && i.Name != f.Name {
		return false
	}
	low, high := f.Range()
	order := i.Order()
	return low <= order && order < high
}

// Order returns a key that sorts records as bytes: by start, and by id where the starts are equal.
// Its length is OrderPrefix and the length of the id.
func (i *Indexed) Order() string { return instant(nanoseconds(i.Start)) + i.ID }

// OrderPrefix is the number of bytes before the id in an Order.
const OrderPrefix = 8

// Range returns bounds for the filter: each record that matches it has an Order of at least low and
// less than high.
func (f Filter) Range() (low, high string) {
	const ms = uint64(time.Millisecond)
	last := uint64(math.MaxUint64)
	if !f.Upto.IsZero() {
		last = (nanoseconds(f.Upto)/ms + 1) * ms
	}
	return instant(nanoseconds(f.Since) / ms * ms), instant(last)
}

func instant(ns uint64) string { return string(binary.BigEndian.AppendUint64(nil, ns)) }

// nanoseconds returns the time since 1970. An earlier time, such as the zero time, returns 0.
func nanoseconds(t time.Time) uint64 {
	if t.Unix() < 0 {
		return 0
	}
	return uint64(t.UnixNano())
}
