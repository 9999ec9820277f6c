package pool

import "sync/atomic"

// A turn is a job that goes on with what it was granted.
type turn struct {
	*errand
	grant
}

// Hands are goroutines that jobs go on in. Some stay for the next job: the stack of a new one would have to grow, and be copied, for each
// call anew.
type hands struct {
	turns chan turn
	idle  atomic.Int32
	over  <-chan struct{}
}

const mostIdleHands = 16

// give waits for nothing.
func (h *hands) give(t turn) {
	select {
	case h.turns <- t:
	default:
		go h.work(t)
	}
}

func (h *hands) work(t turn) {
	for {
		t.granted(t.grant)
		t = turn{} // which nobody is to keep alive
		if h.idle.Add(1) > mostIdleHands {
			h.idle.Add(-1)
			return
		}
		select {
		case t = <-h.turns:
			h.idle.Add(-1)
		case <-h.over:
			return
		}
	}
}
