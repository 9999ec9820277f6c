package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDial(t *testing.T) {
	namespace := fresh(t)
	var listener net.Listener
	if err := Inside(namespace, func() (err error) {
		listener, err = net.Listen("tcp4", "127.0.0.1:1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(conn, "hello")
			conn.Close()
		}
	}()
	conn, err := Dial(t.Context(), namespace, netip.MustParseAddrPort("127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(conn)
	if string(said) != "hello" || err != nil {
		t.Errorf("it has said %q, %v", said, err)
	}
	conn.Close()
	listener.Close()
	_, err = Dial(t.Context(), namespace, netip.MustParseAddrPort("127.0.0.1:1"))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nobody listens: %v", err)
	}
	namespace.Close()
	_, err = Dial(t.Context(), namespace, netip.MustParseAddrPort("127.0.0.1:1"))
	if err == nil {
		t.Error("it has reached a namespace that was let go of")
	}
}

// A program that accepts nothing lets callers wait, and no threads.
func TestDialHoldsNoThread(t *testing.T) {
	namespace := fresh(t)
	defer namespace.Close()
	var deaf int
	if err := Inside(namespace, func() (err error) {
		deaf, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(deaf, &unix.SockaddrInet4{Port: 1}); err != nil {
			return err
		}
		return unix.Listen(deaf, 1)
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(deaf)
	const many, few = 500, 250
	before := threads(t) // those of other tests, which the runtime keeps
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var given atomic.Int32
	for range many {
		all.Go(func() {
			conn, err := Dial(ctx, namespace, netip.MustParseAddrPort("127.0.0.1:1"))
			if err == nil {
				conn.Close()
			} else if errors.Is(err, context.Canceled) {
				given.Add(1)
			} else {
				t.Error(err)
			}
		})
	}
	const asked = 480 // some connect, and some questions are lost
	for late := time.Now().Add(20 * time.Second); asking(t, namespace) < asked; {
		if time.Now().After(late) {
			t.Fatalf("(a control) only %d dials have asked", asking(t, namespace))
		}
		time.Sleep(time.Millisecond)
	}
	if more := threads(t) - before; more > few {
		t.Errorf("%d dials hold %d threads", many, more)
	}
	cancel()
	all.Wait()
	if n := given.Load(); n < many/2 {
		t.Errorf("(a control) only %d have waited", n)
	}
}

// asking returns how many sockets of a namespace wait for the answer of a peer.
func asking(t *testing.T, namespace *os.File) (n int) {
	t.Helper()
	if err := Inside(namespace, func() error {
		all, err := os.ReadFile("/proc/thread-self/net/tcp")
		for line := range strings.Lines(string(all)) {
			if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "02" { // SYN_SENT
				n++
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func fresh(t *testing.T) *os.File {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	namespace, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return namespace
}
