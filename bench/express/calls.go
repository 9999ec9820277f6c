package express

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

// send and hear call the kernel as a program in C does: Go's scheduler would have a part in calls
// that wait, and cost what a message costs.
func send(fd int, b []byte) error {
	for len(b) > 0 {
		n, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return fmt.Errorf("send: %w", e)
		}
		b = b[n:]
	}
	return nil
}

// hear returns 0 where the other end has closed.
func hear(fd int, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, fmt.Errorf("hear: %w", e)
		}
		return int(n), nil
	}
}

// hearAll fills b.
func hearAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := hear(fd, b)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("hear: the other end has closed")
		}
		b = b[n:]
	}
	return nil
}

// accept waits for a connection, and returns its socket.
func accept(listener int) (int, error) {
	for {
		fd, _, e := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0,
			unix.SOCK_CLOEXEC, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return -1, fmt.Errorf("accept: %w", e)
		}
		return int(fd), nil
	}
}

// echoFrom answers one datagram, from wherever it comes.
func echoFrom(fd int, b []byte) error {
	var from unix.RawSockaddrInet4
	size := uint32(unsafe.Sizeof(from))
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(&from)),
			uintptr(unsafe.Pointer(&size)))
		if e == unix.EINTR {
			continue
		}
		if e == 0 {
			_, _, e = syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
				uintptr(unsafe.Pointer(&b[0])), n, 0, uintptr(unsafe.Pointer(&from)),
				uintptr(size))
		}
		if e != 0 {
			return fmt.Errorf("echo: %w", e)
		}
		return nil
	}
}

// A socket is made in a network namespace, and stays there.
func socket(in *os.File, kind int) (fd int, err error) {
	make := func() error {
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		return err
	}
	if in == nil {
		err = make()
	} else {
		err = netns.Inside(in, make)
	}
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return fd, ready(fd, kind)
}

const (
	patience = 30      // seconds, for what was lost
	room     = 4 << 20 // of a socket
)

func ready(fd, kind int) error {
	wait := unix.Timeval{Sec: patience}
	err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room))
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	}
	return err
}

// bound returns a socket at an address.
func bound(in *os.File, kind int, at netip.AddrPort) (fd int, err error) {
	if fd, err = socket(in, kind); err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 1024)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", at, err)
	}
	return fd, nil
}

func connect(fd int, to netip.AddrPort) error {
	for {
		err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		if err == unix.EINTR {
			continue
		}
		if err == unix.EISCONN { // an interrupted one has gone on
			err = nil
		}
		if err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		return nil
	}
}
