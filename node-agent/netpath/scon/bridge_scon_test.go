//go:build scon

package scon

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// Sandboxes on fastiov's own bridge go express under its rules, and what these forbid stays
// forbidden: a sandbox that sends from another address.
func TestFastiovsOwnBridge(t *testing.T) {
	server := newPlace(t)
	place{}.run(t, "ip link set lo up")
	place{}.cable(t, server)
	b, err := bridge.Open(bridge.Config{Name: "fastiov0", Dir: filepath.Join(t.TempDir(), "bridge"),
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)),
		Network: startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/24")}})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := b.Lease("one")
	if err != nil {
		t.Fatal(err)
	}
	nic := lease.NIC
	if nic.Address, err = b.Network.Address(lease.Number); err != nil {
		t.Fatal(err)
	}
	nic.Gateway = b.Network.Gateway
	port, err := b.Plug(t.Context(), &nic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		port.Close()
		b.Return(lease)
		b.Close()
		place{}.run(t, "ip link del nic")
	})
	s := attach(t, func(cfg *Config) { cfg.Bridge, cfg.Settings = "fastiov0", true })
	server.echo(t, "198.18.0.1:7")
	sandbox := place{port}
	for _, network := range []string{"tcp4", "udp4"} {
		conn := sandbox.dial(t, network, "198.18.0.1:7")
		ask(t, conn, 1, 64)
		time.Sleep(young)
		before := s.Counts()
		ask(t, conn, 100, 64)
		if n := s.Counts()["express"] - before["express"]; n < 180 {
			t.Errorf("%s: %d packets of 200 went express: %v, %v", network, n, s.Counts(),
				s.Refused())
		}
	}
	sandbox.run(t, `ip addr add 10.9.0.77/24 dev eth0
ip route change default via 10.9.0.1 src 10.9.0.77`)
	sandbox.do(t, func() error {
		conn := sandbox.dial(t, "udp4", "198.18.0.1:7")
		for range 20 {
			_, _ = conn.Write([]byte("from another address"))
		}
		_ = conn.SetReadDeadline(time.Now().Add(soon))
		if n, err := conn.Read(make([]byte, 100)); err == nil {
			t.Errorf("a sandbox with another's address was answered by %d bytes", n)
		}
		return nil
	})
	view, err := Open(s.Records, s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := view.Entries()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.From.Addr() == netip.MustParseAddr("10.9.0.77") {
			t.Errorf("packets from another address go express: %v", e)
		}
	}
}
