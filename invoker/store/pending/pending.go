// Package pending holds the records that a store has not written yet. Its memory is bounded. Get
// finds a record at once, and Done removes the records that the store has written.
//
// Records are added one by one (Add) and leave in the same order, as many as one write keeps (All,
// Done). While the store cannot write (Fail), no caller waits: a record that does not fit is lost
// and counted.
package pending

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// Limit bounds the memory of the records.
const Limit = 16 << 20

// gather is the time that a record waits for others, since a write of many costs about as much as
// a write of one. The rest of the window is for the write.
const gather = store.Window * 4 / 5

// again is the pause after a failed write, if only records wait for the next one.
const again = time.Second

// Records is the queue. Its owner writes when the function it gave to New is called.
type Records struct {
	wake func()
	log  *slog.Logger

	mu     sync.Mutex
	room   sync.Cond
	queue  []*store.Record
	byID   map[string]*store.Record
	size   int
	limit  int
	timer  *time.Timer
	failed error
	rest   time.Time // until then, a failed write is not tried again
	closed bool
	lost   uint64
	moved  chan struct{} // closed when the queue has changed
}

// New returns an empty queue. It calls wake when it is time to write; wake must not block.
func New(limit int, wake func(), log *slog.Logger) *Records {
	p := &Records{
		wake: wake, log: log, limit: limit, byID: map[string]*store.Record{},
		moved: make(chan struct{}),
	}
	p.room.L = &p.mu
	p.timer = time.AfterFunc(time.Hour, wake)
	p.timer.Stop()
	return p
}

// Add queues a record, or loses it if the queue is closed or full while the store cannot write. Of
// several records with one id, the first one counts. While there is no room, Add waits, unless
// waiting cannot help.
func (p *Records) Add(r *store.Record) (queued bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := r.Size()
	for len(p.queue) > 0 && p.size+size > p.limit && p.failed == nil && !p.closed {
		p.wake()
		p.room.Wait()
	}
	if p.closed || p.failed != nil && p.size+size > p.limit {
		p.lost++
		return false
	}
	if p.byID[r.ID] != nil {
		return true
	}
	p.byID[r.ID] = r
	p.queue = append(p.queue, r)
	p.size += size
	if len(p.queue) == 1 {
		p.timer.Reset(gather)
	}
	return true
}

// Write adds a record and returns when the store has it.
func (p *Records) Write(ctx context.Context, r *store.Record) error {
	queued := p.Add(r)
	for {
		p.mu.Lock()
		written, closed, failed, moved := p.byID[r.ID] == nil, p.closed, p.failed, p.moved
		p.mu.Unlock()
		switch {
		case closed:
			return store.ErrClosed
		case !queued:
			return fmt.Errorf("there is no room for its record: %w", failed)
		case written:
			return nil
		}
		p.wake()
		select {
		case <-moved:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), failed)
		}
	}
}

// tell makes all waiters look again.
func (p *Records) tell() {
	p.room.Broadcast()
	close(p.moved)
	p.moved = make(chan struct{})
}

// All returns the records to write now, oldest first. For a while after Fail it returns none. The
// records stay visible until Done.
func (p *Records) All() []*store.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil && !p.closed && time.Now().Before(p.rest) {
		return nil
	}
	return p.queue[:len(p.queue):len(p.queue)]
}

// Done removes the n oldest records: the store has them, or has refused some of them for good.
func (p *Records) Done(n, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.queue[:n] {
		p.size -= r.Size()
		delete(p.byID, r.ID)
	}
	p.queue = slices.Clone(p.queue[n:])
	p.lost += uint64(refused)
	if p.failed != nil {
		p.log.Info("activation records are written again", "lost", p.lost)
		p.failed = nil
	}
	if len(p.queue) > 0 {
		p.timer.Reset(gather)
	}
	p.tell()
}

// Fail reports that the store could not write them.
func (p *Records) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.log.Error(
			"activation records cannot be written; the newest are lost once the memory kept for them is full",
			"reason", err)
	}
	p.failed = err
	p.rest = time.Now().Add(again)
	p.timer.Reset(again)
	p.room.Broadcast() // wakes callers that wait for room in Add
}

// Close makes later Adds lose their records.
func (p *Records) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.timer.Stop()
	p.tell()
}

// Left returns how many records no store has yet.
func (p *Records) Left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

// Failed returns why the last write failed, or nil.
func (p *Records) Failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Lost counts the records that no store will ever have.
func (p *Records) Lost() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Get returns the record of that id, or nil.
func (p *Records) Get(id string) *store.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

// IDs returns the ids of the records in the queue.
func (p *Records) IDs() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make(map[string]bool, len(p.byID))
	for id := range p.byID {
		ids[id] = true
	}
	return ids
}

// Matching returns the records that the filter takes, by their Order.
func (p *Records) Matching(f store.Filter) map[string]*store.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]*store.Record{}
	for _, r := range p.queue {
		if f.Takes(&r.Indexed) {
			found[r.Order()] = r
		}
	}
	return found
}

// Stored returns which part of a list is needed from a store that has none of the pending records.
// Any pending record may come before the page, so the part begins that many records earlier.
func Stored(pending map[string]*store.Record, skip, limit int) (from, most int) {
	skip, limit = Bounded(skip, limit)
	if limit == 0 {
		return 0, 0
	}
	from = max(skip-len(pending), 0)
	return from, skip - from + limit
}

// Bounded returns a page's bounds as numbers that may be added.
func Bounded(skip, limit int) (int, int) {
	const far = 1 << 30
	return min(max(skip, 0), far), min(max(limit, 0), far)
}

// Page merges the Orders of pending records into that part and returns the requested ones, newest
// first.
func Page(pending map[string]*store.Record, stored []string, skip, limit int) []string {
	from, most := Stored(pending, skip, limit)
	if most == 0 {
		return nil
	}
	all := slices.Clone(stored)
	for order := range pending {
		all = append(all, order)
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	all = slices.Compact(all) // one that the store has written meanwhile
	return all[min(max(skip, 0)-from, len(all)):min(most, len(all))]
}
