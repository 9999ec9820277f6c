package openwhisk

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
)

// refuses is why no call is accepted any more; nil: calls are.
func (a *API) refuses() error {
	if a.closing.Load() {
		return fail(http.StatusServiceUnavailable, "this invoker is being stopped; try again")
	}
	if err := a.cfg.Store.Broken(); errors.Is(err, store.ErrReplaced) {
		return fail(http.StatusServiceUnavailable, "%v; call that one", err)
	}
	return nil
}

// Stop begins the end: no call is accepted any more, and calls that were promised and not sent are
// left to the next invoker.
func (a *API) Stop() { a.closing.Store(true) }

// Await returns when no call runs any more that was sent, or with ctx. The server waits for the
// callers of queued calls.
func (a *API) Await(ctx context.Context) {
	each := time.NewTicker(20 * time.Millisecond)
	defer each.Stop()
	for a.sent.Load() > 0 {
		select {
		case <-each.C:
		case <-ctx.Done():
			return
		}
	}
}

// Close cancels the calls under way, ends every sandbox and returns when that is done and recorded.
// Calls that were promised and not sent are left to the next invoker of that name.
func (a *API) Close() { a.close(a.pool.Close) }

// Leave is Close that leaves warm sandboxes to the pool of the next invoker, and tells which.
func (a *API) Leave() (left []pool.Left) {
	a.close(func() { left = a.pool.Leave() })
	return left
}

func (a *API) close(endPool func()) {
	a.closing.Store(true)
	a.unwatch()
	a.adopting.Wait()
	endPool()
	a.running.Wait()
}
