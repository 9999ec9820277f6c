package bridge

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// The next sandbox of an address gets nothing of what the former one has begun.
func TestTheNextSandboxInheritsNoConnection(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.Network = startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/30")}
	b := open(t, cfg)
	defer b.Close()
	outside := world(t)
	var server net.PacketConn
	if err := netns.Inside(outside, func() (err error) {
		server, err = net.ListenPacket("udp4", "198.18.0.1:7000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	first := plug(t, b, "first")
	socket := listens(first)
	if _, err := socket.WriteTo([]byte("?"), server.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(time.Minute))
	_, from, err := server.ReadFrom(make([]byte, 8))
	if err != nil {
		t.Fatal(err)
	}
	hears := func(socket net.PacketConn, wait time.Duration) bool {
		t.Helper()
		if _, err := server.WriteTo([]byte("!"), from); err != nil {
			t.Fatal(err)
		}
		_ = socket.SetDeadline(time.Now().Add(wait))
		_, _, err := socket.ReadFrom(make([]byte, 8))
		return err == nil
	}
	if !hears(socket, 5*time.Second) {
		t.Error("(a control) it hears no answer")
	}
	first.leave(b)
	next := plug(t, b, "next")
	defer next.leave(b)
	if next.nic.Address != first.nic.Address {
		t.Fatalf("it has %v", next.nic.Address)
	}
	if hears(listens(next), 300*time.Millisecond) {
		t.Error("the next one hears an answer to the first")
	}
}

// However many sandboxes end while the table is read, one more reading serves them all.
func TestOneReadingServesAllThatWait(t *testing.T) {
	const late = 100
	begun, goOn := make(chan addresses, late), make(chan struct{})
	failed := errors.New("no table")
	m := memory{erase: func(of addresses) error {
		begun <- of
		<-goOn
		if len(of) == late {
			return failed
		}
		return nil
	}}
	told := make(chan error, late)
	forget := func(n byte) { told <- m.forget(netip.AddrFrom4([4]byte{10, 9, 0, n})) }
	go forget(0)
	if first := <-begun; len(first) != 1 {
		t.Errorf("the first reading is for %v", first)
	}
	for n := range late {
		go forget(byte(n + 1))
	}
	for waiting := 0; waiting < late; time.Sleep(time.Millisecond) {
		m.mu.Lock()
		if m.next != nil {
			waiting = len(m.next.of)
		}
		m.mu.Unlock()
	}
	if len(begun) > 0 {
		t.Error("two readings are under way")
	}
	goOn <- struct{}{}
	if err := <-told; err != nil {
		t.Error(err)
	}
	goOn <- struct{}{}
	for range late {
		if err := <-told; err != failed {
			t.Errorf("one of those who waited is told %v", err)
		}
	}
	if len(begun) != 1 {
		t.Errorf("%d more readings for those who waited", len(begun))
	}
}

// listens returns a socket in the guest.
func listens(g guest) (socket net.PacketConn) {
	g.Helper()
	if err := g.do(func() (err error) {
		socket, err = net.ListenPacket("udp4", "0.0.0.0:7000")
		return err
	}); err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() { socket.Close() })
	return socket
}
