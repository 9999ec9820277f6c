// Package share divides a scarce resource, so that no user takes all of it.
//
// The rule: each user may hold as much as it leaves free. So a single user gets half at most, a
// second one gets half of the rest, and n users leave at least a 2^n-th part, of which the next one
// can have half. While calls come and go, users that want more than they get come to hold equal
// parts. Nothing is reserved, the number of users need not be known, and a user that holds nothing
// costs nothing.
package share

import (
	"errors"
	"sync/atomic"
)

// Take returns one of these errors.
var (
	ErrPart = errors.New("the share is used up")
	// a user that holds nothing would be refused as well
	ErrWhole = errors.New("the whole is used up")
)

// A Whole is a resource to divide. Taking from it costs a few atomic additions and no lock.
type Whole struct {
	size int64
	used atomic.Int64
}

// A Part is the amount of a Whole that one user holds. The zero value holds nothing.
type Part struct{ held atomic.Int64 }

// Of returns a Whole of that size.
func Of(size int64) *Whole { return &Whole{size: size} }

// Fits returns nil if a part could take n more now, else why not.
func (w *Whole) Fits(p *Part, n int64) error {
	return w.judge(p.held.Load()+n, w.used.Load()+n, n)
}

// judge applies the rule to the held and used amounts, which include the last n.
func (w *Whole) judge(held, used, n int64) error {
	switch free := w.size - used; {
	case held <= free:
		return nil
	case n > free:
		return ErrWhole
	}
	return ErrPart
}

// Take adds n to a part, or returns an error and changes nothing.
//
// If several goroutines take for one part at once, the last one to be counted sees all the others.
// So together they never get more than the rule allows.
func (w *Whole) Take(p *Part, n int64) error {
	if err := w.Fits(p, n); err != nil {
		return err // not counted yet, so that others do not see it
	}
	p.held.Add(n)
	used := w.used.Add(n)
	err := w.judge(p.held.Load(), used, n)
	if err != nil {
		w.Give(p, n)
	}
	return err
}

// Force adds n to a part against the rule, for something that exists already and cannot be refused.
func (w *Whole) Force(p *Part, n int64) {
	p.held.Add(n)
	w.used.Add(n)
}

// Give takes n back from a part.
func (w *Whole) Give(p *Part, n int64) {
	w.used.Add(-n)
	p.held.Add(-n)
}

// Size returns the size of the whole.
func (w *Whole) Size() int64 { return w.size }

// Used returns how much all parts hold.
func (w *Whole) Used() int64 { return w.used.Load() }

// Held returns how much the part holds.
func (p *Part) Held() int64 { return p.held.Load() }
