package bus

import (
	"context"
	"sync"
)

// places holds the places for activations under way. Their number may rise and fall from one moment
// to the next. When it falls, an activation that has a place keeps it.
type places struct {
	mu      sync.Mutex
	used    int
	most    int
	changed chan struct{} // closed when one may be free
	fewer   chan struct{} // closed when there are fewer than there were
	fetched chan struct{} // closed when the last fetch is over
}

func newPlaces(most int) *places {
	return &places{most: most, changed: make(chan struct{}), fewer: make(chan struct{})}
}

// take waits for a free place and takes all that are free; none when ctx ends. When fewer is
// closed, a caller that has not used its places yet may hold too many.
func (p *places) take(ctx context.Context) (taken int, fewer <-chan struct{}) {
	for {
		p.mu.Lock()
		free, changed, fewer := p.most-p.used, p.changed, p.fewer
		p.used += max(free, 0)
		p.mu.Unlock()
		if free > 0 {
			return free, fewer
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// give gives some back.
func (p *places) give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	renew(&p.changed)
}

// fetch begins a fetch for places that were taken, and returns what ends it.
func (p *places) fetch() (over func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fetched := make(chan struct{})
	p.fetched = fetched
	return func() { close(fetched) }
}

// set sets how many places there are. If that is fewer than before, it returns when no fetch for
// more goes on.
func (p *places) set(most int) {
	p.mu.Lock()
	var fetched chan struct{}
	if most < p.most {
		renew(&p.fewer)
		fetched = p.fetched
	}
	p.most = most
	renew(&p.changed)
	p.mu.Unlock()
	if fetched != nil {
		<-fetched
	}
}

// renew closes a channel and puts another in its place.
func renew(c *chan struct{}) {
	close(*c)
	*c = make(chan struct{})
}
