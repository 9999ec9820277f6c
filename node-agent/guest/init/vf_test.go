package main

import (
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// inNetwork runs body in a network namespace of its own, with lo up. body stays on its thread.
func inNetwork(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("no network namespace: %v", err)
			return
		}
		if err := loopbackUp(); err != nil {
			t.Error(err)
			return
		}
		body(t)
	}()
	<-done
}

const vethMAC = "02:00:00:00:00:2a"

func makeVeth(t *testing.T, peerUp bool) bool {
	mac, err := parseMAC(vethMAC)
	if err != nil {
		t.Error(err)
		return false
	}
	veth := &nl.Veth{LinkAttrs: nl.LinkAttrs{Name: "vf", HardwareAddr: mac}, PeerName: "peer"}
	if err := nl.LinkAdd(veth); err != nil {
		t.Errorf("no veth: %v", err)
		return false
	}
	peer, err := nl.LinkByName("peer")
	if err == nil && peerUp {
		err = nl.LinkSetUp(peer)
	}
	if err != nil {
		t.Errorf("peer: %v", err)
	}
	return err == nil
}

func TestBringUp(t *testing.T) {
	for _, c := range []struct{ address, gateway string }{
		{"198.18.0.2/24", "198.18.0.1"},
		{"198.18.0.2/32", "198.18.7.1"}, // a gateway outside the prefix
		{"198.18.0.2/24", ""},
		{"fd00::2/64", "fd00::1"},
	} {
		t.Run(c.address+" by "+c.gateway, func(t *testing.T) {
			inNetwork(t, func(t *testing.T) {
				if !makeVeth(t, true) {
					return
				}
				vf := &wire.NIC{MAC: vethMAC, Address: netip.MustParsePrefix(c.address)}
				if c.gateway != "" {
					vf.Gateway = netip.MustParseAddr(c.gateway)
				}
				rec := &recorder{host: newHost(boottime())}
				if _, err := bringUp(vf, &drivers{}, rec, 10*time.Second); err != nil {
					t.Error(err)
					return
				}
				checkLink(t, vf)
				checkReported(t, rec.host.early, "find", "address", "carrier", "")
			})
		})
	}
}

func checkLink(t *testing.T, vf *wire.NIC) {
	link, err := nl.LinkByName("vf")
	if err != nil {
		t.Error(err)
		return
	}
	if link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		t.Error("the link has no carrier")
	}
	addresses, err := nl.AddrList(link, int(family(vf.Address.Addr())))
	if err != nil || len(addresses) == 0 || addresses[0].IPNet.String() != vf.Address.String() {
		t.Errorf("addresses %v, %v; want %v", addresses, err, vf.Address)
	}
	routes, err := nl.RouteList(link, int(family(vf.Address.Addr())))
	if err != nil {
		t.Error(err)
	}
	found := false
	for _, r := range routes {
		found = found || r.Gw != nil && r.Gw.String() == vf.Gateway.String()
	}
	if found != vf.Gateway.IsValid() {
		t.Errorf("routes: %v", routes)
	}
}

func checkReported(t *testing.T, reported []wire.Up, steps ...string) {
	t.Helper()
	if len(reported) != len(steps) {
		t.Fatalf("reported %+v, want %q", reported, steps)
	}
	for i, step := range steps {
		if e := reported[i].Event; e == nil || e.Step != step || e.Stage != vfStage ||
			e.Begin <= 0 || e.End < e.Begin {
			t.Errorf("reported %+v, want step %q", e, step)
		}
	}
}

// The link may appear after the guest has begun to look for it, and get its carrier after it is up.
func TestBringUpWaits(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(here)
		made := make(chan struct{})
		go func() {
			defer close(made)
			runtime.LockOSThread()
			if err := unix.Setns(here, unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			if !makeVeth(t, false) {
				return
			}
			events := make(chan nl.LinkUpdate, 16)
			done := make(chan struct{})
			defer close(done)
			if err := nl.LinkSubscribeWithOptions(events, done,
				nl.LinkSubscribeOptions{ListExisting: true}); err != nil {
				t.Error(err)
				return
			}
			for e := range events { // when the guest has set its end up, the peer follows
				if e.Attrs().Name == "vf" && e.Attrs().RawFlags&unix.IFF_UP != 0 {
					peer, err := nl.LinkByName("peer")
					if err == nil {
						err = nl.LinkSetUp(peer)
					}
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		}()
		vf := &wire.NIC{MAC: vethMAC, Address: netip.MustParsePrefix("198.18.0.2/24")}
		if _, err := bringUp(vf, &drivers{},
			&recorder{host: newHost(boottime())}, 20*time.Second); err != nil {
			t.Error(err)
		}
		<-made
	})
}

func TestBringUpFails(t *testing.T) {
	address := netip.MustParsePrefix("198.18.0.2/24")
	for _, c := range []struct {
		name, mac, want string
		make            func(t *testing.T) bool
	}{
		{"no such link", "02:00:00:00:00:01", "no network device has this MAC", func(t *testing.T) bool { return makeVeth(t, true) }},
		{"no carrier", vethMAC, "no carrier", func(t *testing.T) bool { return makeVeth(t, false) }},
		{"no MAC", "02:00", "is no MAC address", func(*testing.T) bool { return true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNetwork(t, func(t *testing.T) {
				if !c.make(t) {
					return
				}
				nic := &wire.NIC{MAC: c.mac, Address: address}
				rec := &recorder{host: newHost(boottime())}
				_, err := bringUp(nic, &drivers{}, rec, time.Second)
				if err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), c.mac) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestParseMAC(t *testing.T) {
	if mac, err := parseMAC("02:0A:ff:00:01:fe"); err != nil ||
		string(mac) != "\x02\x0a\xff\x00\x01\xfe" {
		t.Errorf("%x, %v", mac, err)
	}
	for _, bad := range []string{"", "02:0a:ff:00:01", "02:0a:ff:00:01:fe:00", "020aff0001fe",
		"zz:0a:ff:00:01:fe", "02:0a:ff:00:01:f"} {
		if _, err := parseMAC(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

var testVF = &wire.NIC{
	MAC: vethMAC, Address: netip.MustParsePrefix("198.18.0.2/24"),
	Gateway: netip.MustParseAddr("198.18.0.1"), DNS: netip.MustParseAddr("198.18.0.3"),
}
