//go:build trust

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

// TestACIDIsOfWhoTookItFirst tests the kernel's promise that takeCID relies on.
func TestACIDIsOfWhoTookItFirst(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		const cid = 1_899_999_999 // of no sandbox
		ours, err := takeCID(cid)
		if err != nil {
			t.Fatal(err)
		}
		if err := setCID(ours, cid); err != nil { // as QEMU does with the file that it is given
			t.Errorf("its holder takes it again: %v", err)
		}
		if _, err := takeCID(cid); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("another takes it: %v", err)
		}
		ours.Close()
		again, err := takeCID(cid)
		if err != nil {
			t.Fatalf("it is not free again: %v", err)
		}
		again.Close()
	})
}

// TestGuestsCallTheAgentAlone: no local user can listen where guests call, also while no agent
// does.
func TestGuestsCallTheAgentAlone(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		listen := func(port uint32) (err error) {
			sandboxtest.AsUser(t, sandboxtest.Nobody, func() {
				var fd int
				if fd, err = unix.Socket(unix.AF_VSOCK,
					unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
					return
				}
				defer unix.Close(fd)
				if err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY,
					Port: port}); err == nil {
					err = unix.Listen(fd, 1)
				}
			})
			return err
		}
		l, err := guest.Listen()
		if err != nil {
			t.Fatal(err)
		}
		if err := listen(wire.ControlPort); !errors.Is(err, unix.EACCES) {
			t.Errorf("beside the agent: %v", err)
		}
		l.Close()
		if err := listen(wire.ControlPort); !errors.Is(err, unix.EACCES) {
			t.Errorf("while no agent runs: %v", err)
		}
		if err := listen(1024); err != nil {
			t.Errorf("a port that is not reserved, as a comparison: %v", err)
		}
	})
}

// TestNobodySpeaksToAGuestButTheAgent: a local user and a VMM that is broken out try, on a guest
// that runs.
func TestNobodySpeaksToAGuestButTheAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("boots microVMs")
	}
	testbed.Inside(t, testbed.Needs{NICs: 1, Images: []string{runtimeName}}, func(t *testing.T) {
		subject, _ := subject(t, Config{})
		driver, closeDriver, err := subject.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer closeDriver()
		v := oneGuest(t, driver, subject, 0)
		defer v.Close()
		ctx, cancel := context.WithTimeout(t.Context(), subject.Within)
		defer cancel()
		cid := uint32(v.cell.User)
		for _, uid := range []int{sandboxtest.Nobody, v.cell.User, v.cell.User + 1} {
			for _, path := range []string{"/init", "/run"} {
				if said := strangerSays(t, uid, cid, path, nil); strings.Contains(said, "HTTP") {
					t.Errorf("user %d, %s: %q", uid, path, said)
				}
			}
		}
		if said := strangerSays(t, sandboxtest.Nobody,
			cid, "/run", &v.secret); !strings.Contains(said, "HTTP") {
			t.Errorf("with the secret, which is all that kept it out: %q", said)
		}
		runtime := openwhisk.New(v, wire.RuntimePort, nil)
		runtime.Logs(brief(t), time.Time{}) // of that call
		status, answer, err := runtime.Init(ctx, []byte(sandboxtest.Init))
		if err != nil || status != 200 { // a runtime is initialised once
			t.Errorf("/init: %d %s %v", status, answer, err)
		}
		_, answer, err = runtime.Run(ctx, []byte(`{"value":{"name":"us"}}`), time.Time{})
		if err != nil || !strings.Contains(string(answer), "us") {
			t.Errorf("/run: %s %v", answer, err)
		}
		anyPort(ctx, t, v)
		shownNowhere(t, v)
		costs(ctx, t, v)
		thefts(t, driver, subject, v)
	})
}

// anyPort reaches another port of the guest than its runtime's, which answers that nobody listens.
func anyPort(ctx context.Context, t *testing.T, v *vm) {
	if _, err := v.Dial(ctx, 9000); !errors.Is(err, door.ErrNobody) {
		t.Errorf("a port where nobody listens: %v", err)
	}
}

func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// oneGuest starts the subject's i-th sandbox, or shows all that its guest's console said.
func oneGuest(t *testing.T, driver sandbox.Driver, subject sandboxtest.Subject, i int) *vm {
	t.Helper()
	spec := subject.Spec(i)
	spec.ID, spec.Dir = fmt.Sprintf("door-%d", time.Now().UnixNano()), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), subject.Within)
	defer cancel()
	s, err := driver.Start(ctx, spec, &timeline.Timeline{}, func(sandbox.Record) error {
		return nil
	})
	if err != nil {
		console, _ := os.ReadFile(consoleLog(spec))
		t.Fatalf("sandbox %d does not start within %s: %v; its console:\n%s", i, subject.Within,
			err, console)
	}
	return s.(*vm)
}

// thread is a connection with the rights of the thread that reads and writes it.
type thread int

func (c thread) Read(p []byte) (int, error) {
	n, err := unix.Read(int(c), p)
	for err == unix.EINTR { // a socket with a time limit does not read on by itself
		n, err = unix.Read(int(c), p)
	}
	if n <= 0 {
		return 0, errors.Join(err, net.ErrClosed)
	}
	return n, err
}

func (c thread) Write(p []byte) (int, error) { return unix.Write(int(c), p) }

// strangerSays posts as a user, who knows the secret or does not, and returns the answer.
func strangerSays(t *testing.T, uid int, cid uint32, path string,
	secret *door.Secret) (heard string) {
	t.Helper()
	sandboxtest.AsUser(t, uid, func() {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		silence := unix.Timeval{Sec: 60} // then the guest says nothing any more
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET,
			unix.SO_RCVTIMEO, &silence); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrVM{CID: cid, Port: wire.RuntimePort}); err != nil {
			t.Error(err)
			return
		}
		if secret != nil {
			if err := door.Enter(thread(fd), *secret, door.Runtime); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprintf(thread(fd), "POST %s HTTP/1.1\r\nHost: runtime\r\nConnection: close\r\n"+
			"Content-Length: 2\r\n\r\n{}", path)
		for p := make([]byte, 4<<10); ; {
			n, err := thread(fd).Read(p)
			if heard += string(p[:n]); err != nil {
				return
			}
		}
	})
	return heard
}

// thefts: a process with an open /dev/vhost-vsock takes what CIDs it can.
func thefts(t *testing.T, driver sandbox.Driver, subject sandboxtest.Subject, running *vm) {
	thief, err := os.OpenFile("/dev/vhost-vsock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	if err := setCID(thief, uint64(running.cell.User)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("the CID of a guest that runs is taken: %v", err)
	}
	next := uint64(running.cell.User + 1)
	if err := setCID(thief, next); err != nil {
		t.Fatalf("the next CID, to get in the way: %v", err)
	}
	v := oneGuest(t, driver, subject, 1)
	defer v.Close()
	if uint64(v.cell.User) == next {
		t.Error("a sandbox has the CID that a thief holds")
	}
}

// costs logs the cost of the handshake, on a connection over vsock to a guest that idles.
func costs(ctx context.Context, t *testing.T, v *vm) {
	const times = 50
	began := time.Now()
	for range times {
		conn, err := vsock.Dial(uint32(v.cell.User), wire.RuntimePort, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	bare := time.Since(began)
	began = time.Now()
	for range times {
		conn, err := v.Dial(ctx, wire.RuntimePort)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	t.Logf("a connection takes %v, with both proofs %v", bare/times, time.Since(began)/times)
	runtime := openwhisk.New(v, wire.RuntimePort, nil)
	began = time.Now()
	for range times {
		if _, _, err := runtime.Run(ctx, []byte(`{"value":{}}`), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a warm run takes %v", time.Since(began)/times)
}

// shownNowhere looks for the secret where others look.
func shownNowhere(t *testing.T, v *vm) {
	secret, _ := v.secret.MarshalText()
	process := fmt.Sprintf("/proc/%d/", v.cell.PID())
	for _, path := range []string{
		consoleLog(v.spec), vmmLog(v.spec), process + "cmdline", process + "environ",
	} {
		text, err := os.ReadFile(path)
		if err != nil || bytes.Contains(text, secret) || bytes.Contains(text, v.secret[:]) {
			t.Errorf("%s shows the secret, or cannot be read: %v", path, err)
		}
	}
	rec := v.cell.Record(v.spec)
	rec.Secret = v.secret
	if said := fmt.Sprintf("%+v", rec); strings.Contains(said, string(secret)) {
		t.Error("a record that is printed shows the secret")
	}
}
