package bridge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A published port leads to its sandbox from outside and from the host, opens no other one,
// outlives its agent and a flush of all rules, and ends with its sandbox.
func TestAPublishedPort(t *testing.T) {
	for name, join := range joins {
		t.Run(name, func(t *testing.T) { published(t, join) })
	}
}

func published(t *testing.T, join func(*testing.T, *Bridge, string) guest) {
	dir := filepath.Join(t.TempDir(), "bridge")
	b := open(t, config(dir))
	outside := world(t)
	g, other := join(t, b, "a"), join(t, b, "b")
	serves(g, "tcp4", ":80")
	serves(g, "tcp4", ":81")
	serves(g, "udp4", ":80")
	reached := func(network string, from startup.Publication, want bool) {
		t.Helper()
		address := fmt.Sprint("198.18.0.2:", from.HostPort)
		for who, do := range map[string]func(func() error) error{
			"from outside":      func(f func() error) error { return netns.Inside(outside, f) },
			"from the host":     func(f func() error) error { return f() },
			"by another tenant": other.do,
		} {
			want := want && who != "by another tenant"
			wait := 5 * time.Second
			if !want {
				wait = 200 * time.Millisecond
			}
			err := do(func() error { return answered(network, address, wait) })
			if (err == nil) != want {
				t.Errorf("%s: %s %s: %v, want it reached: %v", who, network, address, err, want)
			}
		}
	}
	web := startup.Publication{Protocol: "tcp", HostPort: 8080, Port: 80}
	names := startup.Publication{Protocol: "udp", HostPort: 8080, Port: 80}
	reached("tcp4", web, false)
	for _, p := range []startup.Publication{web, names} {
		if err := b.Publish(g.lease, p); err != nil {
			t.Fatal(err)
		}
	}
	for what, p := range map[string]startup.Publication{"twice": web, "that the host has": {
		Protocol: "tcp", HostPort: listening(t), Port: 80}} {
		if err := b.Publish(other.lease, p); !errors.Is(err, startup.ErrTaken) {
			t.Errorf("a port %s is published: %v", what, err)
		}
	}
	if l, err := net.Listen("tcp4", "198.18.0.2:8080"); err == nil {
		l.Close()
		t.Error("the host listens at a published port, and nobody would reach that")
	}
	whole := func(when string) {
		t.Helper()
		t.Log(when)
		reached("tcp4", web, true)
		reached("udp4", names, true)
		reached("tcp4", startup.Publication{HostPort: 81}, false)
		reached("tcp4", startup.Publication{HostPort: 80}, false)
		if err := netns.Inside(outside, func() error {
			return answered("tcp4", g.nic.Address.Addr().String()+":80", time.Second)
		}); err == nil {
			t.Error("from outside the sandbox itself is reached")
		}
		if err := answered("tcp4", "127.0.0.1:8080", time.Second); err == nil {
			t.Error("the host's loopback leads to the sandbox")
		}
	}
	whole("published")
	b.Close()
	b = open(t, config(dir))
	whole("under another agent")
	tool(t, "nft flush ruleset")
	soon(t, "after a flush", func() error {
		if isWhole(b) {
			return nil
		}
		return net.ErrClosed
	})
	whole("after a flush")
	g.leave(b)
	reached("tcp4", web, false)
	reached("udp4", names, false)
	if err := b.Publish(g.lease, web); err == nil {
		t.Error("of a sandbox that has ended a port is published")
	}
	if err := b.Publish(other.lease, web); err != nil {
		t.Errorf("the port is not free again: %v", err)
	}
	other.leave(b)
	b.Close()
	nothingLeft(t, dir)
}

// A sandbox that ends has its address until its port is unplugged, and nothing is published of it
// in the meantime: the address is another tenant's next.
func TestNothingIsPublishedOfASandboxThatEnds(t *testing.T) {
	b := open(t, config(filepath.Join(t.TempDir(), "bridge")))
	defer b.Close()
	g := plug(t, b, "a")
	web := startup.Publication{Protocol: "tcp", HostPort: 8080, Port: 80}
	b.leases.leave(g.lease)
	if err := b.Publish(g.lease, web); err == nil {
		t.Error("a port is published")
	}
	g.leave(b)
	other := plug(t, b, "b")
	defer other.leave(b)
	if err := b.Publish(other.lease, web); err != nil {
		t.Errorf("the port is not free: %v", err)
	}
}

// listening returns a port at which the host listens.
func listening(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "198.18.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// serves answers in the guest until the test ends.
func serves(g guest, network, address string) {
	g.Helper()
	if err := g.do(func() error {
		if network == "tcp4" {
			serve(g.T, "0.0.0.0"+address)
			return nil
		}
		socket, err := net.ListenPacket(network, "0.0.0.0"+address)
		if err != nil {
			return err
		}
		g.Cleanup(func() { socket.Close() })
		go func() {
			for buffer := make([]byte, 64); ; {
				n, from, err := socket.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = socket.WriteTo(buffer[:n], from)
			}
		}()
		return nil
	}); err != nil {
		g.Fatal(err)
	}
}

// answered returns nil if there is an answer.
func answered(network, address string, wait time.Duration) error {
	conn, err := net.DialTimeout(network, address, wait)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	if network == "udp4" {
		if _, err := io.WriteString(conn, "?"); err != nil {
			return err
		}
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// What the kernel refuses is not published, and what it does not close has its address to itself
// until it does. Then a start that waits gets it.
func TestRulesThatAreRefused(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.Network = startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/30")} // for one sandbox
	b := open(t, cfg)
	defer b.Close()
	g := plug(t, b, "a")
	web := startup.Publication{Protocol: "tcp", HostPort: 8080, Port: 80}
	if err := powerless(func() error { return b.Publish(g.lease, web) }); err == nil {
		t.Fatal("(a control) the rules are written")
	}
	if all := b.leases.published(); len(all) > 0 {
		t.Errorf("published, and said to have failed: %v", all)
	}
	if !isWhole(b) {
		t.Error("after rules that were refused those from before are taken for broken")
	}
	if err := b.Publish(g.lease, web); err != nil {
		t.Errorf("the port is not free: %v", err)
	}
	b.writes.Lock() // the guard puts the rules back soon
	b.leases.leave(g.lease)
	conn, err := nftables.New()
	if err != nil || (rules{Bridge: b}).whole(conn) {
		t.Errorf("a port that leads to nobody is taken for right: %v", err)
	}
	b.writes.Unlock()
	_ = powerless(func() error {
		g.leave(b)
		if l, err := b.Lease("b"); err == nil {
			t.Errorf("another sandbox has address %d while a port leads there", l.Number)
		}
		return nil
	})
	// A start that waits for the address gets it, though nothing else comes back meanwhile.
	grant, err := startup.NewAdmission(1, b).Acquire(t.Context(), "b", 1, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b.Return(*grant.NIC)
}

// powerless calls do on a thread that may not change the network.
func powerless(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the thread
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		err := unix.Capget(&header, &has[0])
		if err == nil {
			has[0].Effective &^= 1 << unix.CAP_NET_ADMIN
			err = unix.Capset(&header, &has[0])
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// Each host port may be published: the rules hold more than one message of the kernel's does. The
// guard puts back a way that is missing.
func TestManyPublishedPorts(t *testing.T) {
	b := open(t, config(filepath.Join(t.TempDir(), "bridge")))
	defer b.Close()
	g := plug(t, b, "a")
	defer g.leave(b)
	b.leases.mu.Lock()
	for n := range uint16(5000) {
		p := startup.Publication{Protocol: "tcp", HostPort: 1024 + n, Port: 80}
		h := b.leases.held[g.lease.Number]
		h.Published = append(h.Published, p)
		b.leases.held[g.lease.Number] = h
	}
	b.leases.mu.Unlock()
	last := startup.Publication{Protocol: "tcp", HostPort: 8080, Port: 80}
	if err := b.Publish(g.lease, last); err != nil {
		t.Fatal(err)
	}
	if !isWhole(b) {
		t.Error("the rules are not whole")
	}
	tool(t, "nft delete element ip fastiov0 published { tcp . 8080 }")
	soon(t, "the way that was removed", func() error {
		if isWhole(b) {
			return nil
		}
		return net.ErrClosed
	})
}
