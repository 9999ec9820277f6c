// Package netns makes network namespaces without a name, and does things inside them.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	own    = "/proc/thread-self/ns/net"
	noIPv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
)

// New returns a network namespace whose loopback device is up, and whose other devices will speak
// IPv4 only. It lives as long as the file is open or a process is in it.
func New() (namespace *os.File, err error) {
	err = apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		if err := os.WriteFile(noIPv6, []byte("1"), 0); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
		namespace, err = os.Open(own)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	return namespace, nil
}

// Inside runs f in a network namespace. f must not hand work to other goroutines.
func Inside(namespace *os.File, f func() error) error {
	return apart(func() error {
		if err := enter(namespace); err != nil {
			return err
		}
		return f()
	})
}

// At is Inside the network namespace that a path leads to.
func At(path string, f func() error) error {
	return apart(func() error {
		namespace, err := open(path)
		if err != nil {
			return err
		}
		err = os.NewSyscallError("setns", unix.Setns(namespace, unix.CLONE_NEWNET))
		unix.Close(namespace)
		if err != nil {
			return err
		}
		return f()
	})
}

// open opens a namespace as what it is: an os.File is made ready to be waited for, which costs more
// than all else here.
func open(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// enter has this thread enter a network namespace. The file may be closed meanwhile: its number
// passes to no other before the thread is inside.
func enter(namespace *os.File) error {
	raw, err := namespace.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) {
		err = unix.Setns(int(fd), unix.CLONE_NEWNET)
	}); failed != nil {
		return failed
	}
	return os.NewSyscallError("setns", err)
}

// apart runs f on a thread that comes back into its network namespace, or ends.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// /proc shows the first thread as the process, which never leaves its namespace.
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- apart(f)
			return
		}
		home, err := open(own)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer unix.Close(home)
		err = f()
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- err
	}()
	return <-done
}
