package api

import (
	"sync"
	"sync/atomic"
	"time"
)

// What the askers of one server may have under way together: bytes of frames that are not whole,
// of runs, and of answers that they have not taken. A run costs its goroutine and what belongs to
// it, too. What is large leaves a part to what is small.
const (
	mostHeld   = 4 * maxMessage
	leftFree   = mostHeld / 4
	runCost    = 20 << 10
	roomWithin = silence / 2 // less than a peer waits that asks whether somebody is there
)

// A budget is what is free of mostHeld. Taking and giving is an atomic operation, but where there
// is not enough. An answer takes what it needs, enough or not: it is there already.
type budget struct {
	free    atomic.Int64
	waiting atomic.Int32

	mu    sync.Mutex
	freed chan struct{} // closed when something is given while somebody waits
}

func newBudget() *budget {
	b := &budget{freed: make(chan struct{})}
	b.free.Store(mostHeld)
	return b
}

// take takes n bytes if there are enough.
func (b *budget) take(n int) bool {
	var leave int64
	if n > readAhead+runCost {
		leave = leftFree
	}
	for {
		free := b.free.Load()
		if free-int64(n) < leave {
			return false
		}
		if b.free.CompareAndSwap(free, free-int64(n)) {
			return true
		}
	}
}

// await takes n bytes, or returns false where there are not enough within roomWithin. Nobody who
// waits keeps others from taking less.
func (b *budget) await(n int) bool {
	if b.take(n) {
		return true
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	late := time.NewTimer(roomWithin)
	defer late.Stop()
	for {
		b.mu.Lock()
		freed := b.freed
		b.mu.Unlock()
		if b.take(n) {
			return true
		}
		select {
		case <-freed:
		case <-late.C:
			return false
		}
	}
}

// owe takes n bytes, enough or not.
func (b *budget) owe(n int) { b.free.Add(-int64(n)) }

func (b *budget) give(n int) {
	if b == nil || n == 0 {
		return
	}
	b.free.Add(int64(n))
	if b.waiting.Load() > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(b.freed)
		b.freed = make(chan struct{})
	}
}
