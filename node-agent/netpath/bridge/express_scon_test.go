//go:build scon

package bridge

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// With the tag, all tests of this package that have a world run with the express path.
func init() {
	connected = func(t *testing.T) { attached(t) }
}

// attached gives the bridge that is there its express path; without one there is nothing to do.
func attached(t *testing.T) *scon.Scon {
	t.Helper()
	if _, err := netlink.LinkByName("fastiov0"); err != nil {
		return nil
	}
	pins := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(pins, 0) })
	cfg := scon.Config{Bridge: "fastiov0", Uplinks: []string{"uplink"}, Records: t.TempDir(),
		Pins: filepath.Join(pins, "scon"), Settings: true, Log: slog.New(slog.DiscardHandler)}
	s, err := scon.Attach(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := scon.DetachGone(cfg.Records); err != nil {
			t.Error(err)
		}
		if len(scon.Attached(cfg.Records)) > 0 {
			if err := scon.Detach(cfg.Records, cfg.Bridge); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// Packets of a sandbox go express both ways, by TCP and UDP, be its port a veth or a tap.
func TestSandboxesGoExpress(t *testing.T) {
	for name, join := range joins {
		t.Run(name, func(t *testing.T) {
			b := open(t, config(filepath.Join(t.TempDir(), "bridge")))
			defer b.Close()
			before := connected
			connected = func(*testing.T) {}
			outside := world(t)
			connected = before
			echo(t, func(f func() error) error { return netns.Inside(outside, f) })
			s := attached(t)
			g := join(t, b, "a")
			defer g.leave(b)
			// Who follows sees to a new port, and to the rules that it has brought, a little later.
			for late, was := time.Now().Add(10*time.Second), s.Counts()["express"]; ; {
				if err := g.do(func() error { return asks("udp4", 5) }); err != nil {
					t.Fatal(err)
				}
				if s.Counts()["express"] > was {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("no packet goes express: %v, %v", s.Counts(), s.Refused())
				}
				time.Sleep(10 * time.Millisecond)
			}
			for _, network := range []string{"tcp4", "udp4"} {
				was := s.Counts()["express"]
				if err := g.do(func() error { return asks(network, 200) }); err != nil {
					t.Fatalf("%s: %v", network, err)
				}
				if n := s.Counts()["express"] - was; n < 300 {
					t.Errorf("%s: %d of 400 packets went express: %v, %v", network, n, s.Counts(),
						s.Refused())
				}
			}
		})
	}
}

const echoing = "198.18.0.1:7"

// echo answers TCP and UDP in the world.
func echo(t *testing.T, there func(func() error) error) {
	t.Helper()
	if err := there(func() error {
		l, err := net.Listen("tcp4", echoing)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		packets, err := net.ListenPacket("udp4", echoing)
		if err != nil {
			return err
		}
		t.Cleanup(func() { packets.Close() })
		go func() {
			for b := make([]byte, 100); ; {
				n, from, err := packets.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo(b[:n], from)
			}
		}()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					for b := make([]byte, 100); ; {
						n, err := conn.Read(b)
						if err != nil {
							return
						}
						_, _ = conn.Write(b[:n])
					}
				}()
			}
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func asks(network string, times int) error {
	conn, err := net.Dial(network, echoing)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer := make([]byte, 100)
	for n := range times {
		if n == 1 && network == "udp4" {
			time.Sleep(150 * time.Millisecond) // until then its packets are regular
		}
		_, err := conn.Write([]byte("question"))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, failed := conn.Read(answer)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}
