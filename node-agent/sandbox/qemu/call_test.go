package qemu

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// answering dials a stand-in for the guest.
func answering(guest func(net.Conn)) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		agent, other := net.Pipe()
		go func() { defer other.Close(); guest(other) }()
		return agent, nil
	}
}

// A VM that took the CID of a dead one gets nothing of the call that was for that one: no port, and
// nothing that it could prove itself with. The call is not connected, so nothing is sent.
func TestAThiefOfACIDHearsNoCall(t *testing.T) {
	for name, claim := range map[string]func(io.ReadWriter) error{
		"with another's secret": func(c io.ReadWriter) error {
			_, err := door.Admit(c, door.NewSecret())
			return err
		},
		"as a runtime": func(c io.ReadWriter) error {
			io.ReadFull(c, make([]byte, 32))
			_, err := io.WriteString(c, strings.Repeat("HTTP/1.1 200 OK\r\n", 8))
			return err
		},
		"with what it hears": func(c io.ReadWriter) error {
			heard := make([]byte, 32)
			io.ReadFull(c, heard)
			_, err := c.Write(append(heard, heard...))
			return err
		},
	} {
		heard := make(chan []byte, 1)
		secret := door.NewSecret()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := enter(ctx, secret, 9000, answering(func(c net.Conn) {
			var all bytes.Buffer
			claim(struct {
				io.Reader
				io.Writer
			}{io.TeeReader(c, &all), c})
			io.Copy(&all, c)
			heard <- all.Bytes()
		}))
		cancel()
		if !errors.Is(err, door.ErrStranger) {
			t.Errorf("%s: %v", name, err)
		}
		all := <-heard
		if len(all) > 32 || bytes.Contains(all, secret[:]) {
			t.Errorf("%s: it hears %q", name, all)
		}
	}
}

func TestACrowdAtTheGuestsDoorIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := door.NewSecret()
		tries := []func(context.Context) (net.Conn, error){
			func(context.Context) (net.Conn, error) { return nil, unix.ETIMEDOUT },
			func(context.Context) (net.Conn, error) { return nil, unix.ECONNRESET },
			// This one hangs up, to make room.
			answering(func(c net.Conn) { io.ReadFull(c, make([]byte, 32)) }),
			answering(func(c net.Conn) {
				door.Admit(c, secret)
				door.Welcome(c)
				io.WriteString(c, "runtime")
			}),
		}
		dial := func(ctx context.Context) (net.Conn, error) {
			try := tries[0]
			tries = tries[1:]
			return try(ctx)
		}
		conn, err := enter(t.Context(), secret, door.Runtime, dial)
		if err != nil {
			t.Fatal(err)
		}
		if said, _ := io.ReadAll(conn); string(said) != "runtime" {
			t.Errorf("behind the door: %q", said)
		}
	})
}

func TestACallEndsWithItsContext(t *testing.T) {
	why := errors.New("the sandbox has ended")
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"a full queue": func(context.Context) (net.Conn, error) {
			return nil, unix.ECONNRESET
		},
		"a guest that hangs": answering(func(c net.Conn) { io.Copy(io.Discard, c) }),
		"one that is half out": answering(func(c net.Conn) {
			c.Write(make([]byte, 40))
			io.Copy(io.Discard, c)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Minute, func() { cancel(why) })
				if _, err := enter(ctx, door.NewSecret(), door.Runtime, dial); !errors.Is(err,
					why) {
					t.Errorf("%v, want %v", err, why)
				}
			})
		})
	}
	gone := func(context.Context) (net.Conn, error) { return nil, unix.ENODEV }
	_, err := enter(t.Context(), door.NewSecret(), door.Runtime, gone)
	if !errors.Is(err, unix.ENODEV) {
		t.Errorf("nobody has the CID: %v", err)
	}
}

// calls is a transport over which one guest calls.
type calls chan net.Conn

func (c calls) Accept() (net.Conn, uint32, error) {
	conn, open := <-c
	if !open {
		return nil, 0, net.ErrClosed
	}
	return conn, 7, nil
}

func (c calls) Close() error { close(c); return nil }

// The CID of a VM that dies is free before any process sees that it has died. A process that calls
// from it then is not greeted, and hears nothing.
func TestWhoCallsAsTheVMMDiesIsNotGreeted(t *testing.T) {
	for state, greeted := range map[string]bool{isRunning: true, isBroken: false} {
		v := controlled(t, state)
		transport := make(calls)
		l := guest.On(transport)
		var err error
		if v.conn, err = l.Expect(7); err != nil {
			t.Fatal(err)
		}
		agent, caller := net.Pipe()
		transport <- agent
		if err := wire.Write(caller, wire.Up{Hello: &wire.Hello{Boot: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := v.greet(t.Context()); (err == nil) != greeted {
			t.Errorf("QEMU says %s, and the caller is greeted with %v",
				strings.TrimSpace(state), err)
		}
		l.Close()
		if said, _ := io.ReadAll(caller); len(said) > 0 {
			t.Errorf("the caller hears %q", said)
		}
	}
}

// A guest that a former agent started leads to its runtime, and refuses another port in one line.
func TestAGuestOfAFormerVersionLeadsToItsRuntime(t *testing.T) {
	v := newVM(sandbox.Spec{ID: "f-1"}, &jail.Cell{}, door.NewSecret())
	_, err := v.Dial(t.Context(), 9000)
	if want := "the guest is of a former version of fastiov, which leads to port 8080 alone; " +
		"start the sandbox again"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	for _, ports := range []bool{true, false} {
		transport := make(calls)
		l := guest.On(transport)
		v := controlled(t, isRunning)
		if v.conn, err = l.Expect(7); err != nil {
			t.Fatal(err)
		}
		agent, caller := net.Pipe()
		transport <- agent
		if err := wire.Write(caller,
			wire.Up{Hello: &wire.Hello{Ready: true, Ports: ports}}); err != nil {
			t.Fatal(err)
		}
		if _, err := v.greet(t.Context()); err != nil || v.ports.Load() != ports {
			t.Errorf("a guest that says %t: %t, %v", ports, v.ports.Load(), err)
		}
		l.Close()
		caller.Close()
	}
}
