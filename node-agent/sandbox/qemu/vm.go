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
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
	"github.com/fastiov/fastiov/node-agent/sandbox/post"
)

// A vm is one microVM, from the moment its cell exists. It implements sandbox.Sandbox.
type vm struct {
	*life.Life
	spec    sandbox.Spec
	cell    *jail.Cell
	conn    *guest.Conn // nil if there was no CID for it
	runtime *post.Client
	ram     memory
	resumed chan time.Time // the guest's first instruction

	mu      sync.Mutex
	qmp     *qmp // nil until connected
	gone    bool // no connection is wanted any more
	pausing bool // we asked for the next STOP
}

func newVM(spec sandbox.Spec, cell *jail.Cell) *vm {
	v := &vm{Life: life.New(), spec: spec, cell: cell, resumed: make(chan time.Time, 1)}
	v.runtime = post.To(func(ctx context.Context) (net.Conn, error) {
		return dialRuntime(ctx, uint32(cell.User))
	})
	return v
}

// dialRuntime calls the guest's runtime as long as ctx allows: the kernel gives a guest two seconds to take a call, and one that shares its
// CPU with many others may need longer.
func dialRuntime(ctx context.Context, cid uint32) (net.Conn, error) {
	for {
		conn, err := vsock.DialContext(ctx, cid, wire.RuntimePort, nil)
		if !errors.Is(err, unix.ETIMEDOUT) || ctx.Err() != nil {
			return conn, err
		}
	}
}

// watch starts the goroutine that notices the end, or brings it about, and takes everything down.
func (v *vm) watch() {
	var hungUp <-chan struct{}
	if v.conn != nil {
		hungUp = v.conn.Done()
	}
	go func() {
		select {
		case <-v.Context().Done():
		case <-v.cell.Done():
			v.End(fmt.Errorf("its VMM ended by itself: %s", v.cell.How()))
		case <-hungUp:
			if v.conn.Err() == nil { // it was us: the driver has been closed, and leaves this vm to a later agent
				v.letGo()
				return
			}
			v.End(v.conn.Err())
		}
		v.takeDown()
	}()
}

func (v *vm) takeDown() {
	v.cell.Close()
	if v.conn != nil {
		v.conn.Close()
	}
	v.disconnect()
	v.ram.close()
	_ = os.Remove(controlSocket(v.spec))
	v.Over(func(cause error) error { return fmt.Errorf("%w%s", cause, evidence(v.spec)) })
}

func (v *vm) letGo() {
	v.End(sandbox.ErrLetGo)
	v.disconnect()
	v.ram.close()
	v.cell.LetGo()
	v.Over(func(cause error) error { return cause })
}

func (v *vm) disconnect() {
	v.mu.Lock()
	v.gone = true
	q := v.qmp
	v.mu.Unlock()
	if q != nil {
		q.close()
	}
	v.runtime.Close()
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
		v.End(errors.New("its guest kernel panicked"))
	case "SHUTDOWN":
		v.End(fmt.Errorf("its guest ended (%.40s)", e.Data.Reason))
	case "STOP":
		v.mu.Lock()
		asked := v.pausing
		v.pausing = false
		v.mu.Unlock()
		if !asked { // the VF reported an error, or KVM could not go on
			v.End(errors.New("its VMM stopped the guest: the VF or KVM reported an error"))
		}
	}
}

// Post implements sandbox.Sandbox.
func (v *vm) Post(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	status, answer, err = v.runtime.Post(ctx, path, body)
	if err != nil && ctx.Err() == nil && v.Cause() != nil && !errors.Is(err, sandbox.ErrUnreached) {
		<-v.Done()
		err = fmt.Errorf("sandbox %s ended during %s: %w", v.spec.ID, path, v.Cause())
	}
	return status, answer, err
}

// Weigh implements sandbox.Weigher.
func (v *vm) Weigh(at timeline.Moment) (timeline.Footprint, error) { return v.ram.weigh(at) }

// Logs implements sandbox.Sandbox.
func (v *vm) Logs(ctx context.Context) []sandbox.LogLine { return v.conn.Logs(ctx) }
