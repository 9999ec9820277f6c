//go:build scon

package scon

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
)

// The next agent takes the programs off what is neither a port nor an uplink any more, and keeps
// off what the operator has turned off.
func TestATakeOverLeavesNothingBehind(t *testing.T) {
	w := wire(t)
	w.host.run(t, "ip link add other type veth peer name other2")
	t.Cleanup(func() { w.host.run(t, "ip link del other") })
	f := w.established(&flow{port: 20001})
	view, err := Open(w.s.Records, w.s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	named, err := ParseFlow("udp", "10.9.0.2:20001", "198.18.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	if err := view.TurnOff(named, true); err != nil {
		t.Fatal(err)
	}
	cfg := w.s.Config
	w.s.Close()
	cfg.Uplinks = []string{"nic", "other"}
	second, err := Attach(cfg)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	w.host.run(t, "ip link set p0 nomaster") // while nobody follows
	for _, device := range []string{"nic", "other", "p0"} {
		if !has(t, device) {
			t.Errorf("%s has no program", device)
		}
	}
	cfg.Uplinks = []string{"nic"}
	if w.s, err = Attach(cfg); err != nil {
		t.Fatal(err)
	}
	defer w.s.Close()
	for device, want := range map[string]bool{"nic": true, "other": false, "p0": false} {
		if has(t, device) != want {
			t.Errorf("%s has a program: %v", device, !want)
		}
	}
	w.host.run(t, "ip link set p0 master br0")
	port, err := netlink.LinkByName("p0")
	if err != nil {
		t.Fatal(err)
	}
	index, table := uint32(port.Attrs().Index), programContable{}
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if w.s.programs.Contables.Lookup(index, &table) == nil {
			break
		} else if time.Now().After(until) {
			t.Fatal("the port was not seen")
		}
	}
	w.permitted()
	for range 4 {
		w.pass(f, true, shape{size: 10})
		w.pass(f, false, shape{size: 10})
	}
	if _, express := w.pass(f, true, shape{size: 10}); express {
		t.Error("what was turned off goes express after a take-over")
	}
	if !w.oneOfFive(func() bool {
		_, express := w.pass(f, false, shape{size: 10})
		return express
	}) {
		t.Errorf("the other direction is regular: %v, %v", w.s.Counts(), w.s.Refused())
	}
}

// has reports whether a device of the host has a program of tcx where packets come in.
func has(t *testing.T, device string) bool {
	t.Helper()
	l, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	at, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index,
		Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Fatal(err)
	}
	return len(at.Programs) > 0
}

// A program that stands behind ours would not see express packets, so there are none.
func TestAProgramBehindOursTurnsItOff(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	port, err := netlink.LinkByName("p0")
	if err != nil {
		t.Fatal(err)
	}
	for where, express := range map[string]bool{"before": true, "behind": false} {
		anchor := link.Head()
		if where == "behind" {
			anchor = link.Tail()
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: port.Attrs().Index, Program: program,
			Attach: ebpf.AttachTCXIngress, Anchor: anchor})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * flushEvery) // nobody announces it
		w.becomes(f, express)
		l.Close()
		w.becomes(f, true)
	}
}

// refuses waits until so many reasons against the express path are known. None may be so still, so
// that is waited for as well.
func (w *wired) refuses(reasons int) {
	time.Sleep(2 * flushEvery)
	for late := time.Now().Add(20 * time.Second); len(w.s.Refused()) != reasons &&
		time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
}

// Two bridges may have their express paths by one uplink: neither turns the other off.
func TestTwoBridgesHaveOneUplink(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	w.wantExpress(f, true)
	w.host.run(t, "ip link add br1 type bridge && ip link set br1 up")
	t.Cleanup(func() { w.host.run(t, "ip link del br1") }) // once nobody follows it
	second := attach(t, func(c *Config) { c.Bridge, c.Pins = "br1", w.s.Pins })
	time.Sleep(2 * flushEvery)
	w.wantExpress(f, true)
	typo := second.Config
	second.Close()
	typo.Uplinks = []string{"nik"}
	if _, err := Attach(typo); err == nil {
		t.Error("attached by an uplink that is not there")
	}
	time.Sleep(2 * flushEvery)
	if len(w.s.Refused()) > 0 {
		t.Errorf("behind an attach that failed: %v", w.s.Refused())
	}
	second, err := Attach(second.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	// One of another version of fastiov has other instructions.
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	nic, err := net.InterfaceByName("nic")
	if err != nil {
		t.Fatal(err)
	}
	other, err := link.AttachTCX(link.TCXOptions{Interface: nic.Index, Program: program,
		Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if w.refuses(1); len(w.s.Refused()) != 1 {
		t.Errorf("a program that nobody knows: %v", w.s.Refused())
	}
	beside := filepath.Join(w.s.Pins, "1-1")
	if err := os.Mkdir(beside, 0o700); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(beside, arrivePin(nic.Index))
	if err := other.Pin(pin); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(pin); _ = os.Remove(beside) }()
	if w.refuses(0); len(w.s.Refused()) > 0 {
		t.Errorf("that of another version: %v", w.s.Refused())
	}
	if state, err := second.State(); err != nil || !state.Answered {
		t.Errorf("the second one: %+v, %v", state, err)
	}
}

// A node takes its own express path off its bridge, and none that an operator has attached.
func TestOnlyItsOwnerDetaches(t *testing.T) {
	build(t, place{})
	cfg := config(t)
	for _, owner := range []string{"", "/run/node", "none"} {
		cfg.Owner = owner
		s, err := Attach(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if owner == "none" { // a former version wrote none down
			file := recordOf(cfg.Records, cfg.Bridge)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = bytes.Replace(text, []byte(`,"Owner":"none"`), nil, 1)
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		detached, err := DetachOwn(cfg.Records, cfg.Bridge, "/run/node/")
		if is := !has(t, "nic"); err != nil || detached != (owner != "") || is != detached {
			t.Errorf("of %q: detached %v, %v: %v", owner, detached, is, err)
		}
	}
}

// When the bridge goes, who follows it takes the programs off the uplinks and puts settings back.
func TestTheBridgeGoes(t *testing.T) {
	w := build(t, place{})
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	cfg := config(t)
	cfg.Settings = true
	s, err := Attach(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.host.run(t, "ip link del br0")
	defer w.host.run(t, "ip link add br0 type bridge") // for who clears the place
	select {
	case <-s.Ended():
	case <-time.After(10 * time.Second):
		t.Fatal("the bridge is gone, and nobody has seen it")
	}
	if has(t, "nic") {
		t.Error("a program is left at the uplink")
	}
	if is, _ := os.ReadFile(Settings[0]); strings.TrimSpace(string(is)) != "0" {
		t.Errorf("%s is %s", Settings[0], is)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Records, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// DetachGone detaches from bridges that went while nobody followed, and from no other.
func TestDetachGone(t *testing.T) {
	w := build(t, place{})
	cfg := config(t)
	s, err := Attach(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, gone := range []bool{false, true} {
		if err := DetachGone(cfg.Records); err != nil {
			t.Fatal(err)
		}
		if is := len(Attached(cfg.Records)) == 0; is != gone || has(t, "nic") == gone {
			t.Errorf("detached: %v", is)
		}
		if !gone {
			w.host.run(t, "ip link del br0")
		}
	}
	w.host.run(t, "ip link add br0 type bridge") // for who clears the place
}

// To look whether somebody follows keeps nobody from it.
func TestALookAtWhoFollows(t *testing.T) {
	w := wire(t)
	view, err := Open(w.s.Records, w.s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	if !view.Followed() {
		t.Error("nobody follows")
	}
	if !slices.Equal(view.uplinks(), []string{"nic"}) {
		t.Errorf("uplinks %v", view.uplinks())
	}
	w.s.Close()
	unlock, err := lock(w.s.Records, w.s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if view.Followed() {
		t.Error("somebody follows")
	}
}

// Without a name, the uplinks are where the default routes lead, also when these change.
func TestUplinksFollowTheDefaultRoutes(t *testing.T) {
	w := wire(t)
	w.s.Close()
	cfg := w.s.Config
	cfg.Uplinks = nil
	var err error
	if w.s, err = Attach(cfg); err != nil {
		t.Fatal(err)
	}
	defer w.s.Close()
	f := w.established(&flow{port: 20001})
	w.host.run(t, "ip route del default")
	for late := time.Now().Add(20 * time.Second); has(t, "nic"); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the former uplink has a program")
		}
	}
	w.becomes(f, false)
	w.host.run(t, "ip route add default via 198.18.0.1")
	w.becomes(f, true)
}

// Where forwarding heeds an MTU that ICMP has told, what exceeds it is refused as without SCON.
func TestAnMTUByICMPHolds(t *testing.T) {
	w := wire(t)
	w.host.run(t, "sysctl -qw net.ipv4.ip_forward_use_pmtu=1; iptables -D INPUT -i nic -j DROP")
	w.permitted()
	f := w.established(&flow{port: 20001})
	own, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: serverIP, Port: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	w.drain()
	if _, err := own.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	sent := w.server.await(t, surely)
	if len(sent) != 1 {
		t.Fatal("the host's own packet was lost")
	}
	const mtu = 900
	w.server.send(t, tooLarge(sent[0], mtu))
	time.Sleep(leaseAndMore)
	for range 4 {
		w.refuse(f, true, shape{size: 1000, dontFragment: true})
		w.pass(f, true, shape{size: 10})
	}
}

// leaseAndMore is the time after which no entry of before holds.
const leaseAndMore = 1200 * time.Millisecond

// tooLarge makes the server's answer to a frame: it exceeds that MTU.
func tooLarge(frame []byte, mtu uint16) []byte {
	ethernet := layers.Ethernet{EthernetType: layers.EthernetTypeIPv4}
	ethernet.SrcMAC, _ = net.ParseMAC(serverMAC)
	ethernet.DstMAC, _ = net.ParseMAC(nicMAC)
	ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: serverIP,
		DstIP: hostIP}
	icmp := layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: mtu}
	quoted := gopacket.Payload(slices.Clone(frame[14 : 14+28]))
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true,
		ComputeChecksums: true}, &ethernet, &ip, &icmp, quoted); err != nil {
		panic(err)
	}
	all := buffer.Bytes()
	if got := binary.BigEndian.Uint16(all[14+20+6:]); got != mtu {
		panic("the MTU is not where it should be")
	}
	return all
}
