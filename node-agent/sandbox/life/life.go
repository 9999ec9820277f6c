// Package life is the one way a sandbox ends.
//
// Many things may end a sandbox: its caller, a cancelled start, a VMM that dies, a guest that powers off. Each of them calls End; the
// first cause is kept. One goroutine, the driver's, waits for the Context to end, takes down all there is and says Over. Everybody else waits for
// Done. Whatever a driver blocks on must be released by that taking down; then no wait needs a second way out.
package life

import (
	"context"
	"errors"
)

var errClosed = errors.New("closed by its owner")

// A Life is one sandbox's. Its Done, Err and Close are those of sandbox.Sandbox.
type Life struct {
	ending context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

// New begins a life.
func New() *Life {
	l := &Life{done: make(chan struct{})}
	l.ending, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// End begins the end; the first cause counts. It does not wait.
func (l *Life) End(cause error) { l.cancel(cause) }

// Context ends with the first End, whose cause is its cause.
func (l *Life) Context() context.Context { return l.ending }

// Cause is that of the first End, or nil. Closing has a cause too.
func (l *Life) Cause() error { return context.Cause(l.ending) }

// Over says that nothing is left. explain may add what is known to a cause that is not the owner's wish.
func (l *Life) Over(explain func(cause error) error) {
	if cause := l.Cause(); cause != errClosed {
		l.err = explain(cause)
	}
	close(l.done)
}

// Done is closed when nothing is left of the sandbox.
func (l *Life) Done() <-chan struct{} { return l.done }

// Err is, after Done, why the sandbox ended; nil if its owner closed it.
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

// Begin runs boot, the start of a sandbox whose taking down is set up by boot itself. If boot fails, or ctx ends before boot has
// returned, the sandbox has ended when Begin returns, and the error is why.
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
