package api

import "sync/atomic"

// The memory that the askers of one server may have under way together: bytes of frames that are
// not whole, of runs, and of answers that they have not taken. A run also costs its goroutine and
// what belongs to it. Large frames leave a part to small ones.
const (
	mostHeld = 4 * maxMessage
	leftFree = mostHeld / 4
	runCost  = 20 << 10
)

// A budget holds the free part of mostHeld. No run waits for room: it would hold up the others of
// its connection, and their cancels. An answer takes what it needs, enough or not, because it is in
// memory already.
type budget struct{ free atomic.Int64 }

func newBudget() *budget {
	b := &budget{}
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

// owe takes n bytes, enough or not.
func (b *budget) owe(n int) { b.free.Add(-int64(n)) }

func (b *budget) give(n int) {
	if b != nil {
		b.free.Add(int64(n))
	}
}
