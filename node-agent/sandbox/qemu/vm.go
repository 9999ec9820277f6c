package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/vsock"

	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/sandbox/post"
)

// A vm is one microVM, from the moment its cell exists. It implements sandbox.Sandbox.
type vm struct {
	spec    sandbox.Spec
	cell    *jail.Cell
	conn    *guest.Conn // nil if there was no CID for it
	runtime *post.Client
	resumed chan time.Time // the guest's first instruction
	done    chan struct{}

	ending context.Context // ended by end, with the cause
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	qmp  *qmp // nil until connected
	gone bool // no connection is wanted any more
	err  error
}

var errClosed = errors.New("closed")

func newVM(spec sandbox.Spec, cell *jail.Cell) *vm {
	v := &vm{spec: spec, cell: cell, resumed: make(chan time.Time, 1), done: make(chan struct{})}
	v.ending, v.cancel = context.WithCancelCause(context.Background())
	v.runtime = post.To(func(ctx context.Context) (net.Conn, error) {
		return vsock.DialContext(ctx, uint32(cell.User), wire.RuntimePort, nil)
	})
	return v
}

// end brings the vm down; the first cause counts. It does not wait: done does.
func (v *vm) end(cause error) { v.cancel(cause) }

// watch starts the goroutine that notices the end, or brings it about, and takes everything down.
func (v *vm) watch() {
	go func() {
		select {
		case <-v.ending.Done():
		case <-v.exited():
			v.end(fmt.Errorf("its VMM ended by itself: %s", v.cell.How()))
		case <-v.hungUp():
			v.end(v.conn.Err())
		}
		v.takeDown()
	}()
}

func (v *vm) exited() <-chan struct{} {
	if v.cell.PID() == 0 {
		return nil
	}
	return v.cell.Done()
}

func (v *vm) hungUp() <-chan struct{} {
	if v.conn == nil {
		return nil
	}
	return v.conn.Done()
}

func (v *vm) takeDown() {
	v.cell.Close()
	if v.conn != nil {
		v.conn.Close()
	}
	v.mu.Lock()
	v.gone = true
	q := v.qmp
	v.mu.Unlock()
	if q != nil {
		q.close()
	}
	v.runtime.Close()
	_ = os.Remove(controlSocket(v.spec))
	if cause := context.Cause(v.ending); cause != errClosed {
		v.err = fmt.Errorf("%w%s", cause, evidence(v.spec))
	}
	close(v.done)
}

// take keeps the control connection, or closes it if the vm has ended meanwhile.
func (v *vm) take(q *qmp) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone {
		q.close()
		return false
	}
	v.qmp = q
	return true
}

// onEvent hears what QEMU tells unasked.
func (v *vm) onEvent(e event) {
	switch e.Name {
	case "RESUME":
		select {
		case v.resumed <- e.At:
		default:
		}
	case "GUEST_PANICKED":
		v.end(errors.New("its guest kernel panicked"))
	case "SHUTDOWN":
		v.end(fmt.Errorf("its guest ended (%.40s)", e.Data.Reason))
	case "STOP": // nobody asks for that: the VF reported an error, or KVM could not go on
		v.end(errors.New("its VMM stopped the guest: the VF or KVM reported an error"))
	}
}

// Post implements sandbox.Sandbox.
func (v *vm) Post(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	status, answer, err = v.runtime.Post(ctx, path, body)
	if err != nil && ctx.Err() == nil && v.ending.Err() != nil {
		<-v.done
		err = fmt.Errorf("sandbox %s ended during %s: %w", v.spec.ID, path, context.Cause(v.ending))
	}
	return status, answer, err
}

// Logs implements sandbox.Sandbox.
func (v *vm) Logs(ctx context.Context) []sandbox.LogLine { return v.conn.Logs(ctx) }

// Done implements sandbox.Sandbox.
func (v *vm) Done() <-chan struct{} { return v.done }

// Err implements sandbox.Sandbox.
func (v *vm) Err() error {
	select {
	case <-v.done:
		return v.err
	default:
		return nil
	}
}

// Close implements sandbox.Sandbox.
func (v *vm) Close() {
	v.end(errClosed)
	<-v.done
}
