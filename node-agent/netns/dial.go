package netns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to an IPv4 address inside a network namespace, by TCP. A socket stays in the
// namespace it was made in: so no thread waits there for a peer that does not answer.
func Dial(ctx context.Context, namespace *os.File, to netip.AddrPort) (net.Conn, error) {
	conn, err := dial(ctx, namespace, to)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp4", Addr: net.TCPAddrFromAddrPort(to),
			Err: err}
	}
	return conn, nil
}

func dial(ctx context.Context, namespace *os.File, to netip.AddrPort) (net.Conn, error) {
	var fd int
	if err := Inside(namespace, func() (err error) {
		const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
		fd, err = unix.Socket(unix.AF_INET, kind, 0)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		return nil, err
	}
	err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	socket := os.NewFile(uintptr(fd), "socket") // behind connect: before it, a socket is writable
	defer socket.Close()
	if errors.Is(err, unix.EINPROGRESS) {
		err = connected(ctx, socket)
	} else {
		err = os.NewSyscallError("connect", err)
	}
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(socket)
	if err != nil {
		return nil, err
	}
	// Where nobody listens, a socket may happen to have that port, and meet itself.
	if conn.LocalAddr().String() == to.String() {
		conn.Close()
		return nil, unix.ECONNREFUSED
	}
	return conn, nil
}

// connected waits until a socket is connected, or cannot be, or ctx is done.
func connected(ctx context.Context, socket *os.File) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })()
	var refused error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			refused = os.NewSyscallError("connect", err)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, refused)
}
