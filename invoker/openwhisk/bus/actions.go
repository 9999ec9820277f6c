package bus

import (
	"container/list"
	"context"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
)

// maxCode bounds the code that is remembered.
const maxCode = 128 << 20

// actions remembers the actions that were run last, one revision of each. A burst of one action
// reads it once.
type actions struct {
	db      *couch.Client
	reading singleflight.Group
	mu      sync.Mutex
	byID    map[string]*list.Element // of *couch.Action
	recent  *list.List               // the latest used in front
	size    int
	most    int
}

func newActions(db *couch.Client) *actions {
	return &actions{db: db, byID: map[string]*list.Element{}, recent: list.New(), most: maxCode}
}

// get returns the action in that revision, or the newest. If no revision is asked for, it does not
// rely on memory.
func (a *actions) get(ctx context.Context, id, revision string) (*couch.Action, error) {
	if revision == "" {
		return a.db.Action(ctx, id)
	}
	if found := a.remembered(id, revision); found != nil {
		return found, nil
	}
	read, err, _ := a.reading.Do(id+" "+revision, func() (any, error) {
		// Who looked before another's reading had ended may come here after it.
		if found := a.remembered(id, revision); found != nil {
			return found, nil
		}
		action, err := a.db.Action(ctx, id)
		if err == nil {
			a.remember(id, action)
		}
		return action, err
	})
	if err != nil {
		return nil, err
	}
	return read.(*couch.Action), nil
}

func (a *actions) remembered(id, revision string) *couch.Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.byID[id]; found != nil {
		if action := found.Value.(*couch.Action); action.Revision == revision {
			a.recent.MoveToFront(found)
			return action
		}
	}
	return nil
}

func (a *actions) remember(id string, action *couch.Action) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(a.byID[id])
	a.byID[id] = a.recent.PushFront(action)
	for a.size += weight(action); a.size > a.most; {
		a.drop(a.recent.Back())
	}
}

// forget drops the action of the document.
func (a *actions) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(a.byID[id])
}

func (a *actions) drop(e *list.Element) {
	if e == nil {
		return
	}
	action := a.recent.Remove(e).(*couch.Action)
	delete(a.byID, action.ID)
	a.size -= weight(action)
}

func weight(action *couch.Action) int { return len(action.Exec.Code) + 1024 }
