package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A house is a guest's door on a Unix socket and the runtime that the door leads to. The runtime
// answers "runtime: " and the first bytes that it has read.
type house struct {
	path    string
	reached atomic.Int32 // connections that the runtime has seen
}

func openHouse(t *testing.T, secret door.Secret) *house {
	t.Helper()
	dir := t.TempDir()
	h := &house{path: filepath.Join(dir, "door")}
	behind, err := net.Listen("unix", filepath.Join(dir, "runtime"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { behind.Close() })
	go func() {
		for {
			conn, err := behind.Accept()
			if err != nil {
				return
			}
			h.reached.Add(1)
			go func() {
				defer conn.Close()
				heard := make([]byte, 64)
				n, _ := conn.Read(heard)
				conn.Write(append([]byte("runtime: "), heard[:n]...))
			}()
		}
	}()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: h.path})
	}
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		t.Fatal(err)
	}
	go acceptAll(fd, &porter{secret: secret}, func(port uint16) (*os.File, error) {
		if port != door.Runtime {
			return nil, fmt.Errorf("nobody listens on port %d", port)
		}
		return dialLocal(filepath.Join(dir, "runtime"))()
	})
	return h
}

func (h *house) call(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", h.path)
	for ; errors.Is(err, unix.EAGAIN); conn, err = net.Dial("unix", h.path) { // its queue is full
		runtime.Gosched()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

func (h *house) agentSays(t *testing.T, secret door.Secret, text string) string {
	t.Helper()
	conn := h.call(t)
	if err := door.Enter(conn, secret, door.Runtime); err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, text)
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

func TestStrangersDoNotReachTheRuntime(t *testing.T) {
	secret := door.NewSecret()
	h := openHouse(t, secret)
	conn := h.call(t)
	io.WriteString(conn, "POST /run HTTP/1.1\r\nHost: runtime\r\n"+strings.Repeat("X: y\r\n", 20)+
		"\r\n")
	if answer, _ := io.ReadAll(conn); strings.Contains(string(answer), "runtime") {
		t.Errorf("a stranger hears %q", answer)
	}
	if err := door.Enter(h.call(t), door.NewSecret(), door.Runtime); err == nil {
		t.Error("the guest knows another secret")
	}
	if n := h.reached.Load(); n != 0 {
		t.Errorf("strangers reached the runtime %d times", n)
	}
	if said := h.agentSays(t, secret, "hello"); said != "runtime: hello" || h.reached.Load() != 1 {
		t.Errorf("the agent hears %q", said)
	}
}

// A caller that is let in and asks for a port on which nothing listens learns that at once.
func TestNobodyListensInside(t *testing.T) {
	secret := door.NewSecret()
	h := openHouse(t, secret)
	if err := door.Enter(h.call(t), secret, 9000); !errors.Is(err, door.ErrNobody) {
		t.Errorf("the agent hears %v", err)
	}
	if said := h.agentSays(t, secret, "hello"); said != "runtime: hello" {
		t.Errorf("then it hears %q", said)
	}
}

// However many callers say nothing, few of them wait and the agent comes through.
func TestStrangersMakeRoomForTheAgent(t *testing.T) {
	secret := door.NewSecret()
	h := openHouse(t, secret)
	var silent []net.Conn
	for range 8 * strangers {
		silent = append(silent, h.call(t))
	}
	if said := h.agentSays(t, secret, "hello"); said != "runtime: hello" {
		t.Errorf("the agent hears %q", said)
	}
	for i, conn := range silent[:len(silent)-strangers] {
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("stranger %d of %d still waits: %v", i, len(silent), err)
		}
	}
	if n := h.reached.Load(); n != 1 {
		t.Errorf("the runtime was reached %d times", n)
	}
}

func TestAGuestWithoutASecretOpensNoDoor(t *testing.T) {
	err := openDoor(door.Secret{}, wire.RuntimePort)
	if err == nil || !strings.Contains(err.Error(), "no secret") {
		t.Error(err)
	}
}
