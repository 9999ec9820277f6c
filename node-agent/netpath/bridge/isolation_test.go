package bridge

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A tenant tries all that another tenant, or the host, must not feel. With isolation off each of
// these comes through: so the tests can see it.
func TestTenantsOfOneBridgeAreApart(t *testing.T) {
	for how, join := range joins {
		for name, shared := range map[string]bool{"isolated": false, "shared": true} {
			t.Run(name+", "+how, func(t *testing.T) { tenants(t, shared, join) })
		}
	}
}

func tenants(t *testing.T, shared bool, join func(*testing.T, *Bridge, string) guest) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.shared = shared
	b := open(t, cfg)
	defer b.Close()
	world(t)
	wait := 100 * time.Millisecond
	if shared { // it is heard, and how soon does not matter
		wait = time.Minute
	}
	evil, victim := join(t, b, "evil"), join(t, b, "victim")
	defer evil.leave(b)
	defer victim.leave(b)
	if err := victim.do(func() error { serve(t, "0.0.0.0:8080"); return nil }); err != nil {
		t.Fatal(err)
	}
	serve(t, "0.0.0.0:9464")
	for what, address := range map[string]string{
		"a port of another tenant":                 victim.nic.Address.Addr().String() + ":8080",
		"the agent's port at the gateway":          "10.9.0.1:9464",
		"the agent's port at the host's uplink":    "198.18.0.2:9464",
		"(a control, which always must) the world": worldServer,
	} {
		if shared || address == worldServer {
			evil.mustReach(what, address)
		} else if evil.reaches(address) == nil {
			t.Errorf("%s is reached", what)
		}
	}
	evilMAC, victimMAC := mac(evil.nic.MAC), mac(victim.nic.MAC)
	evilIP, victimIP := evil.nic.Address.Addr(), victim.nic.Address.Addr()
	gateway := b.Network.Gateway
	all := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	routers := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	// First of all: after what follows, the host's table of neighbours is wrong where it is shared.
	for what, sent := range map[string][]byte{
		"a broadcast to other tenants":   arp(all, evilMAC, evilMAC, evilIP),
		"a frame to another tenant":      udp(victimMAC, evilMAC, evilIP, victimIP),
		"an advertisement of a router":   ether(routers, evilMAC, unix.ETH_P_IPV6, ra()),
		"a packet by way of the gateway": udp(macOf(gateway), evilMAC, evilIP, victimIP),
	} {
		var heard bool
		if err := victim.do(func() error {
			heard = hears(t, wait, device, evil, sent)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if heard != shared {
			t.Errorf("%s: another tenant has heard it %v, want %v", what, heard, shared)
		}
	}
	for what, sent := range map[string][]byte{
		"ARP: the gateway's address is mine": arp(all, evilMAC, evilMAC, gateway),
		"ARP: another's address is mine":     arp(all, evilMAC, evilMAC, victimIP),
		"ARP: another's MAC is mine":         arp(all, evilMAC, victimMAC, evilIP),
		"a frame from another's MAC":         udp(macOf(gateway), victimMAC, evilIP, gateway),
		"a packet from another's address":    udp(macOf(gateway), evilMAC, victimIP, gateway),
		"a packet from the world's address": udp(macOf(gateway), evilMAC,
			netip.MustParseAddr("198.18.0.1"), gateway),
		"an IPv6 router's advertisement": ether(routers, evilMAC, unix.ETH_P_IPV6, ra()),
		"a frame with a VLAN": ether(all, evilMAC, unix.ETH_P_8021Q,
			append([]byte{0, 5}, arp(all, evilMAC, evilMAC, gateway)[12:]...)),
		"a frame of no known protocol": ether(all, evilMAC, 0x88b5, make([]byte, 46)),
	} {
		if heard := hears(t, wait, cfg.Name, evil, sent); heard != shared {
			t.Errorf("%s: the host has heard it %v, want %v", what, heard, shared)
		}
	}
	// The kernel hands such frames to the port, past the rules of bridges.
	if forged := forgets(t, wait, b, evil, victim); forged != shared {
		t.Errorf("a link-local frame has taken another's MAC: %v, want %v", forged, shared)
	}
	if got := pastTheBridge(t, wait, evil); got != shared {
		t.Errorf("a link-local frame has reached the host's UDP port: %v, want %v", got, shared)
	}
	port := b.portName(evil.lease.Number)
	if knowsByARP(t, port, evil) {
		t.Error("a link-local frame has brought ARP to the host")
	}
	if link, err := net.InterfaceByName(port); err != nil {
		t.Error(err)
	} else if addresses, err := link.Addrs(); len(addresses) > 0 || err != nil {
		t.Errorf("the host has %v at a tenant's port, %v", addresses, err)
	}
	if heard := hears(t, time.Minute, cfg.Name, evil,
		arp(all, evilMAC, evilMAC, evilIP)); !heard {
		t.Error("(a control) the host does not hear an honest ARP request")
	}
}

// What conntrack takes for no part of a connection is translated by nobody, and does not leave.
func TestAStrayFINStaysIn(t *testing.T) {
	for how, join := range joins {
		t.Run(how, func(t *testing.T) { strayFIN(t, join) })
	}
}

func strayFIN(t *testing.T, join func(*testing.T, *Bridge, string) guest) {
	b := open(t, config(filepath.Join(t.TempDir(), "bridge")))
	defer b.Close()
	world(t)
	g := join(t, b, "a")
	defer g.leave(b)
	uplink := raw(t, "uplink")
	defer unix.Close(uplink)
	patience(t, uplink, time.Minute)
	const text = "a FIN of no connection"
	ours, gateway := mac(g.nic.MAC), macOf(b.Network.Gateway)
	from, to := g.nic.Address.Addr(), netip.MustParseAddr("198.18.0.1")
	g.sends(fin(gateway, ours, from, to, text))
	after := udp(gateway, ours, from, to)
	g.sends(after)
	for frame := make([]byte, 2048); ; {
		n, err := frameOf(uplink, frame)
		if err != nil {
			t.Fatalf("what was sent behind the FIN does not leave: %v", err)
		}
		if bytes.Contains(frame[:n], []byte(text)) {
			t.Errorf("a FIN of no connection leaves: %x", frame[:n])
		}
		if bytes.HasSuffix(frame[:n], after[len(after)-16:]) {
			return
		}
	}
}

// bridgeGroup is an address to which only the next bridge listens, as for LLDP.
var bridgeGroup = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// sends puts a frame on the guest's wire.
func (g guest) sends(frame []byte) {
	g.Helper()
	if err := g.do(func() error {
		out := raw(g.T, device)
		defer unix.Close(out)
		_, err := unix.Write(out, frame)
		return err
	}); err != nil {
		g.Fatal(err)
	}
}

// forgets reports whether the bridge takes the victim's MAC for evil's, who says so by a
// link-local frame.
func forgets(t *testing.T, wait time.Duration, b *Bridge, evil, victim guest) bool {
	t.Helper()
	evil.sends(ether(bridgeGroup, mac(victim.nic.MAC), 0x88cc, make([]byte, 46)))
	port, err := netlink.LinkByName(b.portName(evil.lease.Number))
	if err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		last := time.Now().After(late)
		entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
		if err != nil {
			t.Fatal(err)
		}
		if found := slices.ContainsFunc(entries, func(n netlink.Neigh) bool {
			return n.LinkIndex == port.Attrs().Index && n.HardwareAddr.String() == victim.nic.MAC
		}); found || last {
			return found
		}
	}
}

// pastTheBridge reports whether a link-local frame of evil's brings a packet to a UDP port of the
// host.
func pastTheBridge(t *testing.T, wait time.Duration, evil guest) bool {
	t.Helper()
	socket, err := net.ListenPacket("udp4", "198.18.0.2:9")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	evil.sends(udp(bridgeGroup, mac(evil.nic.MAC), netip.MustParseAddr("198.18.0.1"),
		netip.MustParseAddr("198.18.0.2")))
	_ = socket.SetReadDeadline(time.Now().Add(wait))
	_, _, err = socket.ReadFrom(make([]byte, 512))
	return err == nil
}

// knowsByARP reports whether the host takes an address from a link-local frame of evil's.
func knowsByARP(t *testing.T, port string, evil guest) bool {
	t.Helper()
	forged, host := netip.MustParseAddr("198.18.0.77"), netip.MustParseAddr("198.18.0.2")
	frame := arp(bridgeGroup, mac(evil.nic.MAC), mac(evil.nic.MAC), forged)
	copy(frame[len(frame)-4:], host.AsSlice()) // who has it is asked
	evil.sends(frame)
	time.Sleep(50 * time.Millisecond)
	link, err := netlink.LinkByName(port)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := netlink.NeighList(link.Attrs().Index, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(entries, func(n netlink.Neigh) bool {
		return n.IP.Equal(net.IP(forged.AsSlice()))
	})
}

// hears reports whether a device of this thread's network gets what the guest sends.
func hears(t *testing.T, wait time.Duration, device string, from guest, sent []byte) bool {
	t.Helper()
	socket := raw(t, device)
	defer unix.Close(socket)
	patience(t, socket, wait)
	payload := sent[12:] // MACs change at the gateway
	if len(payload) > 22 && binary.BigEndian.Uint16(payload) == unix.ETH_P_IP {
		payload = payload[14:] // TTL and checksum do, too
	}
	if err := from.do(func() error {
		out := raw(t, "eth0")
		defer unix.Close(out)
		_, err := unix.Write(out, sent)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	for {
		n, err := frameOf(socket, buffer)
		if err != nil {
			return false
		}
		// The kernel takes the tag of a VLAN off.
		if bytes.Contains(buffer[:n], payload) ||
			binary.BigEndian.Uint16(sent[12:]) == unix.ETH_P_8021Q &&
				bytes.Contains(buffer[:n], sent[16:]) {
			return true
		}
	}
}

// frameOf reads a frame. A socket with a patience does not start an interrupted read again.
func frameOf(socket int, buffer []byte) (int, error) {
	for {
		n, err := unix.Read(socket, buffer)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// patience bounds how long a read of the socket waits.
func patience(t *testing.T, socket int, wait time.Duration) {
	t.Helper()
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
}

// raw returns a socket that sends and hears frames of a device.
func raw(t *testing.T, device string) int {
	t.Helper()
	const everything = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everything)
	if err != nil {
		t.Fatal(err)
	}
	link, err := net.InterfaceByName(device)
	if err != nil {
		t.Fatal(err)
	}
	at := &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Index}
	if err := unix.Bind(socket, at); err != nil {
		t.Fatal(err)
	}
	return socket
}

func mac(text string) net.HardwareAddr {
	m, _ := net.ParseMAC(text)
	return m
}

func ether(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := append(append([]byte{}, to...), from...)
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, payload...)
}

// arp says that the MAC has the address.
func arp(to, from, mac net.HardwareAddr, address netip.Addr) []byte {
	const request = 1
	body := append([]byte{}, arpOfIP4...)
	body = append(body, 0, request)
	body = append(append(body, mac...), address.AsSlice()...)
	return ether(to, from, unix.ETH_P_ARP, append(append(body, 0, 0, 0, 0, 0, 0),
		address.AsSlice()...))
}

var datagrams byte

// udp is a datagram to port 9, with a text of its own.
func udp(to, from net.HardwareAddr, source, target netip.Addr) []byte {
	datagrams++
	text := fmt.Sprintf("datagram %d of process %d", datagrams, os.Getpid())
	header := []byte{0, 53, 0, 9, 0, byte(8 + len(text)), 0, 0}
	return ip4(to, from, source, target, unix.IPPROTO_UDP, append(header, text...))
}

// fin ends a TCP connection that nobody began, with a text.
func fin(to, from net.HardwareAddr, source, target netip.Addr, text string) []byte {
	const finAck = 0x11
	segment := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, finAck, 1, 0, 0, 0, 0, 0}
	segment = append(segment, text...)
	pseudo := append(append(source.AsSlice(), target.AsSlice()...), 0, unix.IPPROTO_TCP, 0,
		byte(len(segment)))
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	return ip4(to, from, source, target, unix.IPPROTO_TCP, segment)
}

func ip4(to, from net.HardwareAddr, source, target netip.Addr, protocol byte,
	payload []byte) []byte {
	header := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 1, 0, 0, 64, protocol, 0, 0}
	header = append(append(header, source.AsSlice()...), target.AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return ether(to, from, unix.ETH_P_IP, append(header, payload...))
}

// checksum is the Internet's, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return ^uint16(sum>>16 + sum)
}

// ra is a router's advertisement, from its link-local address to all.
func ra() []byte {
	source := netip.MustParseAddr("fe80::1")
	target := netip.MustParseAddr("ff02::1")
	body := []byte{0x60, 0, 0, 0, 0, 16, unix.IPPROTO_ICMPV6, 255}
	body = append(append(body, source.AsSlice()...), target.AsSlice()...)
	return append(body, 134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0)
}

// What a metadata service of a cloud would answer stays the host's.
func TestLinkLocalAddressesAreTheHosts(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	b := open(t, cfg)
	defer b.Close()
	world(t)
	g := plug(t, b, "a")
	defer g.leave(b)
	metadata := route(t, "169.254.169.254/32")
	defer metadata()
	near := route(t, "198.19.0.1/32") // the same way, and let through
	defer near()
	if err := g.reaches("198.19.0.1:80"); err == nil {
		t.Error("nobody listens there")
	} else if heard := passes(t, 5*time.Second, g, "198.19.0.1"); !heard {
		t.Error("(a control) nothing passes")
	}
	if heard := passes(t, 100*time.Millisecond, g, "169.254.169.254"); heard {
		t.Error("a packet to the metadata service has left the host")
	}
}

// passes reports whether the uplink sees a packet of the guest to address.
func passes(t *testing.T, wait time.Duration, g guest, address string) bool {
	sent := udp(macOf(netip.MustParseAddr("10.9.0.1")), mac(g.nic.MAC), g.nic.Address.Addr(),
		netip.MustParseAddr(address))
	text := sent[42:]
	socket := raw(t, "uplink")
	defer unix.Close(socket)
	patience(t, socket, wait)
	if err := g.do(func() error {
		out := raw(t, device)
		defer unix.Close(out)
		_, err := unix.Write(out, sent)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	for {
		n, err := frameOf(socket, buffer)
		if err != nil {
			return false
		}
		if bytes.Contains(buffer[:n], text) {
			return true
		}
	}
}
