package knative

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// What is written later is written after this time, so that one write has several changes.
const laterBy = 20 * time.Millisecond

// So many documents are written later at once; they share the disk's flush.
const writers = 64

// hold waits until nobody writes an object's document, and has nobody else do so.
func (w *world) hold(at ref, mine write) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy[at] != nil {
		w.await(w.busy[at])
	}
	mine.over = make(chan struct{})
	w.busy[at] = &mine
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, at)
		close(mine.over)
	}
}

// await waits until a write has ended. The caller holds the lock, and does not meanwhile.
func (w *world) await(it *write) {
	w.mu.Unlock()
	<-it.over
	w.mu.Lock()
}

// note puts an object with its JSON in the place of old, for all to see at once. Its document is
// written later, so a crash may lose it: what is noted is found out again.
func (w *world) note(o object, body []byte, old *entry) error {
	at := ref{old.kind, old.name}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy[at] != nil && !w.busy[at].behind { // what comes of that is not known yet
		w.await(w.busy[at])
	}
	if now := w.find(at.kind, at.name); now == nil || now.revision != old.revision {
		return conflict(old.kind, old.name.name)
	}
	e, err := entryOf(old.kind, o, w.revision+1, body)
	if err != nil {
		return err
	}
	w.happen(&event{what: "MODIFIED", entry: e, before: old, noted: true})
	w.writeSoon(at)
	return nil
}

// writeSoon has an object's document written. The caller holds the lock.
func (w *world) writeSoon(at ref) {
	w.later[at] = true
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// writeLater writes what was noted, until the world is closed and nothing is left.
func (w *world) writeLater() {
	for closing := false; !closing; {
		select {
		case <-w.wake:
		case <-w.over:
		}
		select {
		case <-time.After(laterBy):
		case <-w.over: // a disk that fails now is not asked again and again
			closing = true
		}
		if err := w.writeNoted(); err != nil {
			w.log.Error("how it is with services is not written yet", "err", err)
			select {
			case <-time.After(time.Second):
			case <-w.over:
			}
		}
	}
}

// writeNoted writes all that was noted up to now.
func (w *world) writeNoted() (err error) {
	w.mu.Lock()
	noted := w.later
	w.later = map[ref]bool{}
	w.mu.Unlock()
	var all sync.WaitGroup
	var failed sync.Once
	places := make(chan struct{}, writers)
	for at := range noted {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if why := w.writeOne(at); why != nil {
				failed.Do(func() { err = why })
			}
		})
	}
	all.Wait()
	return err
}

func (w *world) writeOne(at ref) error {
	defer w.hold(at, write{behind: true})()
	e, kept := w.now(at)
	if e == nil {
		return nil
	}
	doc := store.Doc{Key: at.key(), Revision: kept, Body: e.document()}
	revision, err := w.store.Put(context.Background(), doc, nil, store.Unbounded)
	if errors.Is(err, store.ErrConflict) {
		return nil // it is gone, which is about to be seen
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.writeSoon(at)
	} else if w.find(at.kind, at.name) != nil {
		w.kept[at] = revision
	}
	return err
}

// close writes what was noted.
func (w *world) close() {
	close(w.over)
	w.wrote.Wait()
}
