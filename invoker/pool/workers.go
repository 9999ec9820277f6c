package pool

import "sync/atomic"

// A turn is a job that goes on with what it was granted.
type turn struct {
	*errand
	grant
}

// Workers are the goroutines in which jobs go on. Some stay for the next job: the stack of a new one
// would have to grow, and be copied, for each call.
type workers struct {
	turns chan turn
	idle  atomic.Int32
	over  <-chan struct{}
}

const mostIdleWorkers = 16

// give waits for nothing.
func (w *workers) give(t turn) {
	select {
	case w.turns <- t:
	default:
		go w.work(t)
	}
}

func (w *workers) work(t turn) {
	for {
		t.granted(t.grant)
		t = turn{} // which nobody is to keep alive
		if w.idle.Add(1) > mostIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case t = <-w.turns:
			w.idle.Add(-1)
		case <-w.over:
			return
		}
	}
}
