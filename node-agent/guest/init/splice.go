package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func dialVsock(cid, port uint32) (*os.File, error) {
	return dial(unix.AF_VSOCK, &unix.SockaddrVM{CID: cid, Port: port})
}

// dialInside connects to a TCP port of the guest's own loopback.
func dialInside(port int) (*os.File, error) {
	return dial(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
}

func dial(family int, to unix.Sockaddr) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return stream(fd)
}

// stream is a connected socket as a file that the Go runtime waits for without a thread.
func stream(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

// openDoor connects the agent, when it calls the guest's vsock port, to the TCP port that it names:
// to that of the runtime where it names none.
func openDoor(secret door.Secret, runtime int) error {
	if secret.IsZero() {
		return errors.New("the host gave no secret by which the guest could know it again")
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: wire.RuntimePort})
	}
	if err == nil {
		err = bufferOf(fd, strangerBuffer)
	}
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	// This guest has no vsock: the runtime is reached by the network alone.
	if err == unix.EAFNOSUPPORT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("vsock port %d cannot be listened on: %w", wire.RuntimePort, err)
	}
	go acceptAll(fd, &porter{secret: secret}, func(port uint16) (*os.File, error) {
		if port == door.Runtime {
			return dialInside(runtime)
		}
		return dialInside(int(port))
	})
	return nil
}

func acceptAll(fd int, porter *porter, dial func(port uint16) (*os.File, error)) {
	for {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			// Descriptors or memory are short; the caller waits in the queue.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		caller, err := stream(conn)
		if err != nil {
			continue
		}
		place := porter.arrive(caller)
		go func() {
			defer caller.Close()
			if port, agent := porter.admits(caller, place); agent {
				connect(caller, func() (*os.File, error) { return dial(port) })
			}
		}()
	}
}

// connect dials for the agent, and passes on what both sides say.
func connect(agent *os.File, dial func() (*os.File, error)) {
	inside, err := dial()
	if err != nil {
		_ = door.Refuse(agent)
		return
	}
	defer inside.Close()
	if door.Welcome(agent) != nil {
		return
	}
	agent.SetDeadline(time.Time{})
	splice(agent, inside)
}

// splice copies both ways until both have ended; the end of one way is passed on as such.
func splice(a, b *os.File) {
	var both sync.WaitGroup
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
}

func oneWay(to, from *os.File) {
	// The structs hide that these are files, which io.Copy would try to copy as such.
	io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	shutdown(to, unix.SHUT_WR)
	shutdown(from, unix.SHUT_RD)
}

func shutdown(f *os.File, how int) {
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), how) })
	}
}
