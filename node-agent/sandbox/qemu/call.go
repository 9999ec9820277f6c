package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
	"unsafe"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// A vsock CID belongs to the open file of /dev/vhost-vsock that was given it last, until that file
// is closed. A VMM has such a file. Its filter has the kernel leave the CID as it is, but we do not
// rely on that. Hence three rules. The CID is taken here, before the guest is expected. A guest is
// greeted only if its VMM still answers after the call: then the file was open, and the CID the
// VMM's, when the call came. Later messages go to the guest by a connection on which it has proved
// to be the one that was configured.

const (
	cidTries   = 256 // each CID that is in the way is held by a VMM that is broken out
	callWithin = time.Minute
	againFirst = 5 * time.Millisecond
	againMost  = 250 * time.Millisecond
)

// confine builds the cell of a sandbox and takes the CID that goes with it.
func (d *Driver) confine(spec sandbox.Spec) (*jail.Cell, *os.File, error) {
	for range cidTries {
		cell, err := d.host.Build(spec, spec.MemoryMiB+OverheadMiB)
		if err != nil {
			return nil, nil, err
		}
		device, err := takeCID(cell.User)
		if err == nil {
			return cell, device, nil
		}
		cell.Close()
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, nil, err
		}
		d.config.Log.Warn("a stranger has a sandbox's vsock CID; taking another", "cid", cell.User)
	}
	return nil, nil, fmt.Errorf("strangers have %d vsock CIDs in a row: end all sandboxes with "+
		"`fastiov drain --cancel`", cidTries)
}

// takeCID makes cid that of the VMM which will be given the file.
func takeCID(cid int) (*os.File, error) {
	device, err := os.OpenFile("/dev/vhost-vsock", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := setCID(device, uint64(cid)); err != nil {
		device.Close()
		return nil, fmt.Errorf("vsock CID %d: %w", cid, err)
	}
	return device, nil
}

func setCID(device *os.File, cid uint64) error {
	const setGuestCID = 0x4008af60 // VHOST_VSOCK_SET_GUEST_CID
	fd := device.Fd()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, setGuestCID, uintptr(unsafe.Pointer(&cid)))
	if errno != 0 {
		return errno
	}
	return nil
}

// greet waits for the guest's call, and makes sure that it is this sandbox's guest that called.
func (v *vm) greet(ctx context.Context) (hello wire.Hello, err error) {
	if hello, err = v.conn.Hello(ctx); err != nil {
		return hello, err
	}
	if _, err = v.state(); err != nil {
		return hello, fmt.Errorf("its VMM ends as its guest calls: %w", err)
	}
	v.ports.Store(hello.Ports)
	return hello, nil
}

// Dial implements sandbox.Sandbox.
func (v *vm) Dial(ctx context.Context, port int) (net.Conn, error) {
	wanted := uint16(port)
	switch {
	case port == v.spec.Program.Listens():
		wanted = door.Runtime // which guests of every version know
	case !v.ports.Load():
		return nil, fmt.Errorf("the guest is of a former version of fastiov, which leads to port "+
			"%d alone; start the sandbox again", v.spec.Program.Listens())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callWithin, errors.New("the guest takes no calls"))
	defer cancel()
	defer context.AfterFunc(v.Context(), cancel)()
	conn, err := enter(ctx, v.secret, wanted, func(ctx context.Context) (net.Conn, error) {
		return vsock.DialContext(ctx, uint32(v.cell.User), wire.RuntimePort, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", port, err)
	}
	return v.Tie(conn), nil
}

// enter dials until both sides have proved themselves, as long as ctx allows. The kernel gives a
// guest two seconds to take a call, and a guest that shares its CPU with many others may need
// longer. If a local user calls it all the time, the guest's queue may be full, or it may have hung
// up on us to make room. Nothing has been sent by then.
func enter(
	ctx context.Context, secret door.Secret, port uint16,
	dial func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	for pause := againFirst; ; pause = min(2*pause, againMost) {
		conn, err := dial(ctx)
		if err == nil {
			if err = prove(ctx, conn, secret, port); err == nil {
				return conn, nil
			}
			conn.Close()
		}
		if !isCrowd(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func isCrowd(err error) bool {
	for _, sign := range []error{
		unix.ETIMEDOUT, unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

func prove(ctx context.Context, conn net.Conn, secret door.Secret, port uint16) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := door.Enter(conn, secret, port)
	if !stop() {
		return context.Cause(ctx)
	}
	return err
}
