package oci

import (
	"context"
	"errors"
)

// A Turn lets a layer's blocks be fetched. Between two turns a layer keeps its process, and what
// was passed on to that; it has no blocks in memory.
type Turn interface {
	// Take waits for the turn. The context that it returns ends with the cause ErrOver when it is
	// another's.
	Take(context.Context) (turn context.Context, leave func(), err error)
	// Next waits until the next block may be asked for.
	Next(context.Context) error
	// Waits tells that the registry is waited for, and Came that so many bytes came.
	Waits()
	Came(bytes int)
	// Again tells that bytes came that had come before: the registry knows no ranges.
	Again(bytes int)
}

// ErrOver ends a turn.
var ErrOver = errors.New("it is another's turn")

// atOnce is the turn of what is small.
type atOnce struct{}

func (atOnce) Take(ctx context.Context) (context.Context, func(), error) {
	return ctx, func() {}, nil
}
func (atOnce) Next(context.Context) error { return nil }
func (atOnce) Waits()                     {}
func (atOnce) Came(int)                   {}
func (atOnce) Again(int)                  {}

// held is a turn that was taken before there is anything to be fetched for.
type held struct {
	Turn
	within context.Context
	leave  func() // nil: it was left, or handed on
}

func hold(ctx context.Context, turn Turn) (h *held, err error) {
	h = &held{Turn: turn}
	h.within, h.leave, err = turn.Take(ctx)
	return h, err
}

// Take implements Turn.
func (h *held) Take(ctx context.Context) (context.Context, func(), error) {
	if leave := h.leave; leave != nil {
		h.leave = nil
		return h.within, leave, nil
	}
	return h.Turn.Take(ctx)
}

func (h *held) drop() {
	if h.leave != nil {
		h.leave()
		h.leave = nil
	}
}
