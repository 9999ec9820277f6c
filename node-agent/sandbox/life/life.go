// Package life implements the one way in which a sandbox ends.
//
// Many things may end a sandbox: its caller, a cancelled start, a VMM that dies, a guest that
// powers off. Each of them calls End, and the first cause is kept. One goroutine of the driver
// waits for the Context, tears everything down and calls Over. All others wait for Done. The
// teardown must release everything that a driver blocks on; then no wait needs a second way out.
package life

import (
	"context"
	"errors"
	"sync"
)

var errClosed = errors.New("closed by its owner")

// A Life is the life of one sandbox. Its Done, Err and Close implement those of sandbox.Sandbox.
type Life struct {
	ending context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error

	mu    sync.Mutex
	calls map[*call]bool
}

// New returns the life of a new sandbox.
func New() *Life {
	l := &Life{done: make(chan struct{})}
	l.ending, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// End begins the end of the sandbox. Only the first cause counts. End does not wait.
func (l *Life) End(cause error) { l.cancel(cause) }

// Context is cancelled by the first End; context.Cause returns that End's cause.
func (l *Life) Context() context.Context { return l.ending }

// Cause returns the cause of the first End, or nil. Close has a cause too.
func (l *Life) Cause() error { return context.Cause(l.ending) }

// Over reports that nothing is left of the sandbox. If its owner did not end it, explain may add to
// the cause.
func (l *Life) Over(explain func(cause error) error) {
	if cause := l.Cause(); cause != errClosed {
		l.err = explain(cause)
	}
	close(l.done)
}

// Done is closed when nothing is left of the sandbox.
func (l *Life) Done() <-chan struct{} { return l.done }

// Err returns, after Done, why the sandbox ended, or nil if its owner closed it.
func (l *Life) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// Close ends the sandbox and returns when nothing of it is left.
func (l *Life) Close() {
	l.End(errClosed)
	<-l.done
}

// Begin runs boot, which starts the sandbox. boot must start the goroutine that tears the sandbox
// down before it can fail. If boot fails, or ctx ends before boot returns, the sandbox has ended
// when Begin returns, and the error is the reason.
func (l *Life) Begin(ctx context.Context, boot func() error) error {
	stop := context.AfterFunc(ctx, func() { l.End(context.Cause(ctx)) })
	err := boot()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	l.End(err)
	<-l.done
	return l.err
}
