package vf

import (
	"context"
	"iter"
	"time"
)

// keepSettled bounds what a reader that comes late learns of the work on one VF.
const keepSettled = 16

// News is a VF that has changed since its reader last looked.
type News struct {
	Status
	Settled []Settled // its preparations and resets that have ended meanwhile, the last 16
}

// Settled is the end of a VF's preparation or reset.
type Settled struct {
	From   State // Preparing or Resetting
	Took   time.Duration
	Err    error
	number uint64 // of the change
}

// Watch yields every VF at first, and then those that have changed since, until ctx ends or the
// pool is closed. It shows states and not events: a slow reader skips some, and the pool never
// waits for it. A lost lease is shown until it is returned, so every reader sees it.
func (p *Pool) Watch(ctx context.Context) iter.Seq[[]News] {
	return func(yield func([]News) bool) {
		changed := make(chan struct{}, 1)
		p.mu.Lock()
		p.watchers[changed] = struct{}{}
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.watchers, changed)
		}()
		for seen := uint64(0); ; {
			var news []News
			if news, seen = p.since(seen); len(news) > 0 && !yield(news) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-p.ctx.Done():
				return
			}
		}
	}
}

// since returns the VFs that have changed after the change of that number, and the last number.
func (p *Pool) since(seen uint64) (news []News, last uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.vfs {
		if v.changed <= seen {
			continue
		}
		n := News{Status: v.status()}
		for _, s := range v.settled {
			if s.number > seen {
				n.Settled = append(n.Settled, s)
			}
		}
		news = append(news, n)
	}
	return news, p.changes
}

// tell shows v to all readers. The lock is held.
func (p *Pool) tell(v *function) {
	p.changes++
	v.changed = p.changes
	for changed := range p.watchers {
		wake(changed)
	}
}

// settle keeps the end of a job for the readers. The lock is held.
func (p *Pool) settle(v *function, s Settled) {
	p.tell(v)
	s.number = v.changed
	if len(v.settled) == keepSettled {
		v.settled = v.settled[1:]
	}
	v.settled = append(v.settled, s)
}
