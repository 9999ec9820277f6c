// Package share divides what there is little of, so that nobody takes it all.
//
// The rule: each may hold as much as it leaves free. So one who is alone gets half at most, a second
// half of what is left, and n leave a 2^n-th part at least, of which the next can have half. While
// calls come and go, those who want more than they get come to hold the same. Nothing is set aside,
// how many there are need not be known, and who holds nothing costs nothing.
package share

import (
	"errors"
	"sync/atomic"
)

// What a Take is refused for.
var (
	ErrPart  = errors.New("the share is used up")
	ErrWhole = errors.New("the whole is used up") // one who holds nothing would be refused as well
)

// A Whole is what is divided. Taking of it costs a few atomic additions and no lock.
type Whole struct {
	size int64
	used atomic.Int64
}

// A Part is what one holds of a Whole. The zero value holds nothing.
type Part struct{ held atomic.Int64 }

// Of returns a Whole of that size.
func Of(size int64) *Whole { return &Whole{size: size} }

// Fits tells whether a part could have n more now.
func (w *Whole) Fits(p *Part, n int64) error {
	return w.judge(p.held.Load()+n, w.used.Load()+n, n)
}

// judge applies the rule to what would be held and used with the last n.
func (w *Whole) judge(held, used, n int64) error {
	switch free := w.size - used; {
	case held <= free:
		return nil
	case n > free:
		return ErrWhole
	}
	return ErrPart
}

// Take gives n more to a part, or nothing and says why.
//
// Of several who take at once for one part, the last to be counted sees all the others, so together
// they never get more than the rule allows.
func (w *Whole) Take(p *Part, n int64) error {
	if err := w.Fits(p, n); err != nil {
		return err // without having been counted, which others would have seen
	}
	p.held.Add(n)
	used := w.used.Add(n)
	err := w.judge(p.held.Load(), used, n)
	if err != nil {
		w.Give(p, n)
	}
	return err
}

// Force gives n more to a part, whatever the rule says: for what is there and cannot be refused.
func (w *Whole) Force(p *Part, n int64) {
	p.held.Add(n)
	w.used.Add(n)
}

// Give takes n back from a part.
func (w *Whole) Give(p *Part, n int64) {
	w.used.Add(-n)
	p.held.Add(-n)
}

// Size is how much there is in all.
func (w *Whole) Size() int64 { return w.size }

// Used is how much is held by all.
func (w *Whole) Used() int64 { return w.used.Load() }

// Held is how much the part holds.
func (p *Part) Held() int64 { return p.held.Load() }
