package pool

import "sync/atomic"

// Workers are the goroutines in which leases are made ready and used. Some stay for the next lease:
// the stack of a new one would have to grow, and be copied, for each call.
type workers struct {
	grants chan grant
	idle   atomic.Int32
	over   <-chan struct{}
}

const mostIdleWorkers = 16

// give waits for nothing.
func (w *workers) give(g grant) {
	select {
	case w.grants <- g:
	default:
		go w.work(g)
	}
}

func (w *workers) work(g grant) {
	for {
		g.lease.granted(g)
		g = grant{} // which nobody is to keep alive
		if w.idle.Add(1) > mostIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case g = <-w.grants:
			w.idle.Add(-1)
		case <-w.over:
			return
		}
	}
}
