//go:build trust

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const localCID = 1

// TestALocalUserAtTheGuestsDoor tests the guest's door over vsock itself: a user that does not know
// the secret does not reach the runtime, however it is called and however often, and the agent
// still does.
func TestALocalUserAtTheGuestsDoor(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		if out, err := exec.Command("modprobe", "vsock_loopback").CombinedOutput(); err != nil {
			t.Fatalf("vsock_loopback: %v: %s", err, out)
		}
		var reached atomic.Int32
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", wire.RuntimePort))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %d", r.URL.Path, len(body))
		}))
		secret := door.NewSecret()
		if err := openDoor(secret, wire.RuntimePort); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/init", "/run"} {
			sandboxtest.AsUser(t, sandboxtest.Nobody, func() {
				if said := sayLocally(t, request(path, 10)); strings.Contains(said, "HTTP") {
					t.Errorf("%s: %q", path, said)
				}
			})
		}
		if n := reached.Load(); n != 0 {
			t.Errorf("the runtime was reached %d times", n)
		}
		stop := flood(t)
		const large = 1 << 19 // more than vsock buffers, either way
		for range 10 {
			said := agentSays(t, secret, request("/run", large))
			if !strings.Contains(said, fmt.Sprint("/run ", large)) {
				t.Errorf("the agent hears %q", said)
			}
		}
		t.Logf("meanwhile %d calls of a local user", stop())
		if n := reached.Load(); n != 10 {
			t.Errorf("the runtime was reached %d times", n)
		}
	})
}

func request(path string, size int) string {
	return fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: runtime\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		path, size, strings.Repeat("x", size))
}

// callLocally connects to the guest's door with the rights of this thread.
func callLocally() (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrVM{CID: localCID,
		Port: wire.RuntimePort}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sayLocally(t *testing.T, text string) (answer string) {
	fd, err := callLocally()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer unix.Close(fd)
	unix.Write(fd, []byte(text))
	heard := make([]byte, 1<<10)
	for {
		n, err := unix.Read(fd, heard)
		if n <= 0 || err != nil {
			return answer
		}
		answer += string(heard[:n])
	}
}

// flood has a local user call without end, keeping each call as long as the guest does.
func flood(t *testing.T) (stop func() int64) {
	var over atomic.Bool
	var calls atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sandboxtest.AsUser(t, sandboxtest.Nobody, func() {
			var held [2 * strangers]int
			for n := 0; !over.Load(); n = (n + 1) % len(held) {
				if held[n] > 0 {
					unix.Close(held[n])
				}
				if held[n], _ = callLocally(); held[n] > 0 {
					calls.Add(1)
				}
			}
			for _, fd := range held {
				if fd > 0 {
					unix.Close(fd)
				}
			}
		})
	}()
	return func() int64 { over.Store(true); <-ended; return calls.Load() }
}

// agentSays acts as the agent does: it calls until it is let in.
func agentSays(t *testing.T, secret door.Secret, text string) string {
	t.Helper()
	var last error
	for late := time.Now().Add(20 * time.Second); time.Now().Before(late); time.Sleep(
		time.Millisecond) {
		conn, err := vsock.Dial(localCID, wire.RuntimePort, nil)
		if err != nil {
			last = err
			continue
		}
		defer conn.Close()
		if last = door.Enter(conn, secret, door.Runtime); last != nil {
			continue
		}
		io.WriteString(conn, text)
		answer, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		return string(answer)
	}
	t.Fatalf("the agent is not let in: %v", last)
	return ""
}
