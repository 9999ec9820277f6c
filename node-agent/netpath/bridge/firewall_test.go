package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

// route leads an address to the world, whose MAC it has, until the returned func is called.
func route(t *testing.T, to string) func() {
	t.Helper()
	uplink, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	target := netip.MustParsePrefix(to)
	r := &netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: ipNet(target),
		Scope: unix.RT_SCOPE_LINK}
	if err := netlink.RouteAdd(r); err != nil {
		t.Fatal(err)
	}
	n := &netlink.Neigh{LinkIndex: uplink.Attrs().Index, IP: target.Addr().AsSlice(),
		State: unix.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	if err := netlink.NeighAdd(n); err != nil {
		t.Fatal(err)
	}
	return func() { _ = netlink.NeighDel(n); _ = netlink.RouteDel(r) }
}

func tool(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	if _, err := exec.LookPath(words[0]); err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("%s is missing: apt-get install iptables nftables", words[0])
	}
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// soon waits until check holds.
func soon(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if err = check(); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s: %v", what, err)
}

// Docker and ufw drop what is forwarded, and ufw what comes in. Who loads his firewall anew flushes
// all there is.
func TestTheHostsFirewall(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, line := range []string{"iptables-nft -P FORWARD DROP", "iptables-nft -P INPUT DROP",
		"iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER",
		"nft add table bridge filter", "nft add chain bridge filter sent"} {
		tool(t, line)
	}
	defer func() { tool(t, "nft flush ruleset") }()
	b := open(t, cfg)
	world(t)
	g := plug(t, b, "a")
	g.mustReach("the world, behind Docker's firewall", worldServer)
	if said := tool(t, "iptables-nft -S"); !strings.Contains(said, "-A FORWARD -i fastiov0") ||
		!strings.Contains(said, "-A INPUT -i fastiov0") {
		t.Errorf("the host's tool does not show what was added: %s", said)
	}
	for what, reload := range map[string][]string{
		"its own chain is flushed": {"iptables-nft -F FORWARD"},
		"all is flushed, and loaded anew": {"nft flush ruleset", "iptables-nft -P FORWARD DROP",
			"iptables-nft -P INPUT DROP"},
		"only the bridge's rules are flushed": {"nft flush chain ip fastiov0 postrouting"},
		"a firewall of another kind": {"nft add table inet filter",
			"nft add chain inet filter forward { type filter hook forward priority 0 ; policy drop ; }"},
	} {
		for _, line := range reload {
			tool(t, line)
		}
		soon(t, what, func() error { return g.reaches(worldServer) })
		soon(t, what+": who may send", func() error {
			if !isWhole(b) {
				return net.ErrClosed
			}
			return nil
		})
	}
	if err := g.reaches("10.9.0.1:9464"); err == nil {
		t.Error("after all that, the host's ports are open")
	}
	g.leave(b)
	b.Close()
	if said := tool(t, "nft list ruleset"); strings.Contains(said, "fastiov0") {
		t.Errorf("left over in the tables of others: %s", said)
	}
}

// Two nodes of one host leave each other's tables alone.
func TestTwoBridges(t *testing.T) {
	var bridges []*Bridge
	for n, name := range []string{"fastiov0", "fio1"} {
		cfg := config(filepath.Join(t.TempDir(), name))
		cfg.Name = name
		cfg.Network.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(n), 0}), 24)
		b := open(t, cfg)
		defer b.Close()
		bridges = append(bridges, b)
	}
	world(t)
	for n, b := range bridges {
		g := plug(t, b, "a")
		defer g.leave(b)
		g.mustReach("the world", worldServer)
		theirs := bridges[1-n].Network.Gateway.String() + ":9464"
		if err := g.reaches(theirs); err == nil {
			t.Errorf("a sandbox of %s reaches the host at %s", b.Name, theirs)
		}
	}
	hears, err := nl.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hears.Close()
	if err := hears.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		t.Fatal(err)
	}
	soon(t, "tables at rest", func() error {
		if err := hears.SetReadDeadline(time.Now().Add(10 * settleTime)); err != nil {
			return err
		}
		said, err := hears.Receive() // what each was told of the other may still be dealt with
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("they change all the time: %d messages, %v", len(said), err)
	})
}

// A table may be its owner's alone, as firewalld's. A bridge beside it works as far as it is let.
func TestAFirewallThatTakesNoRule(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tool(t, "nft list ruleset")
	owner := exec.Command("nft", "-i")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = owner.Wait() }()
	if _, err := io.WriteString(in, "add table inet theirs { flags owner; }\nadd chain inet theirs"+
		" through { type filter hook forward priority 0; }\n"); err != nil {
		t.Fatal(err)
	}
	soon(t, "their table", func() error {
		return exec.Command("nft", "list", "chain", "inet", "theirs", "through").Run()
	})
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	var said bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	b := open(t, cfg)
	world(t)
	g := plug(t, b, "a")
	g.mustReach("the world", worldServer)
	g.leave(b)
	b.Close()
	nothingLeft(t, cfg.Dir)
	if n := strings.Count(said.String(), "lets nobody add a rule"); n != 1 {
		t.Errorf("it is said %d times: %s", n, said.String())
	}
}

// A host that forwards for the bridge alone routes nothing between its other networks. It goes on
// for somebody else's bridge that came meanwhile.
func TestTheHostIsNoRouter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tool(t, "nft list ruleset")
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	b := open(t, cfg)
	near, far := tun(t, "near", "10.77.0.1/24"), tun(t, "far", "10.78.0.1/24")
	passes := func() bool {
		packet := udp(make([]byte, 6), make([]byte, 6), netip.MustParseAddr("10.77.0.2"),
			netip.MustParseAddr("10.78.0.2"))[14:]
		if _, err := unix.Write(near, packet); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 2048)
		for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
			n, _ := unix.Read(far, buffer) // it does not wait
			if n > 0 && bytes.Contains(buffer[:n], packet[28:]) {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	}
	if passes() {
		t.Error("the host routes between its neighbours")
	}
	if !isWhole(b) {
		t.Error("the rules are not whole")
	}
	unruled(t, b, func() {
		if !passes() {
			t.Error("(a control) without the last rule, nothing passes either")
		}
	})
	soon(t, "the last rule", func() error {
		if passes() {
			return os.ErrExist
		}
		return nil
	})
	theirs := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
	if err := netlink.LinkAdd(theirs); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if is, err := os.ReadFile(forwardIP); err != nil || is[0] != '1' {
		t.Errorf("ip_forward is %q, %v: their bridge is cut off", is, err)
	}
	if err := netlink.LinkDel(theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(forwardIP, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, cfg.Dir)
}

// tun makes a device with an address, and returns what is behind it.
func tun(t *testing.T, name, address string) (fd int) {
	t.Helper()
	link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Queues: 1,
		Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Fds[0].Close(); _ = netlink.LinkDel(link) })
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	fd = int(link.Fds[0].Fd())
	if err := errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link),
		unix.SetNonblock(fd, true)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// unruled does it without the last rule for what is forwarded, which the guard puts back behind it.
func unruled(t *testing.T, b *Bridge, do func()) {
	t.Helper()
	b.writes.Lock() // the guard waits
	defer b.writes.Unlock()
	said := tool(t, "nft -a list chain ip fastiov0 forward")
	handle := strings.Fields(said[strings.LastIndex(said, "# handle ")+9:])[0]
	tool(t, "nft delete rule ip fastiov0 forward handle "+handle)
	do()
}

// A resolver that listens on the host's loopback device serves sandboxes, too; and the next one
// where the first is silent.
func TestNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkSetDown(lo) }()
	resolver, err := net.ListenPacket("udp4", "127.0.0.53:53")
	if err != nil {
		t.Fatal(err)
	}
	defer resolver.Close()
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := resolver.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = resolver.WriteTo(append([]byte("answer to "), buffer[:n]...), from)
		}
	}()
	serve(t, "127.0.0.53:53")
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.Resolvers = file
	b := open(t, cfg)
	defer b.Close()
	if err := os.WriteFile(file, []byte("# stub\nnameserver 127.0.0.99\nnameserver 127.0.0.53\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	g := plug(t, b, "a")
	defer g.leave(b)
	const query = "a question of many bytes"
	ask := func(network string) (answer string, err error) {
		err = g.do(func() error {
			conn, err := net.DialTimeout(network, "10.9.0.1:53", time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := conn.Write([]byte(query)); err != nil {
				return err
			}
			buffer := make([]byte, 512)
			n, err := conn.Read(buffer)
			answer = string(buffer[:n])
			return err
		})
		return answer, err
	}
	if answer, err := ask("udp4"); answer != "answer to "+query {
		t.Errorf("by UDP: %q, %v", answer, err)
	}
	if answer, err := ask("tcp4"); !strings.HasPrefix(answer, "127.0.0.1:") {
		t.Errorf("by TCP: %q, %v", answer, err)
	}
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if answer, err := ask("udp4"); len(answer) != len(query) || answer[2]&0x80 == 0 ||
		answer[3]&0xf != 2 {
		t.Errorf("where no resolver answers: %q, %v", answer, err)
	}
}

// What a sandbox begins while a firewall is loaded anew ends with the moment in which that was
// possible: to the host, and from outside to it.
func TestWhatBeganWithoutRulesEndsWithThem(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	defer func() { tool(t, "nft flush ruleset") }()
	b := open(t, cfg)
	defer b.Close()
	world(t)
	g := plug(t, b, "a")
	defer g.leave(b)
	echoes(t, "10.9.0.1:9464")
	b.writes.Lock() // the guard waits
	for _, line := range []string{"nft flush ruleset", "nft add table ip other",
		"nft add chain ip other input { type filter hook input priority 0 ; }",
		"nft add rule ip other input ct state established accept"} { // it follows connections
		tool(t, line)
	}
	var conn net.Conn
	if err := g.do(func() (err error) {
		conn, err = net.DialTimeout("tcp4", "10.9.0.1:9464", time.Minute)
		return err
	}); err != nil {
		b.writes.Unlock()
		t.Fatalf("(a control) without rules the host is not reached: %v", err)
	}
	defer conn.Close()
	if err := echoed(conn, time.Minute); err != nil {
		t.Errorf("(a control) without rules nothing is heard: %v", err)
	}
	b.writes.Unlock()
	soon(t, "the rules", func() error {
		if isWhole(b) {
			return nil
		}
		return net.ErrClosed
	})
	if err := echoed(conn, time.Second); err == nil {
		t.Error("with the rules, what began without them goes on")
	}
	g.mustReach("(a control) the world", worldServer)
}

// echoes answers each byte with itself until the test ends.
func echoes(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func echoed(conn net.Conn, within time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// A bridge by which the host itself goes out is a way for sandboxes, too, and no other one is.
func TestAnUplinkThatIsABridge(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	outside := world(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	br := &netlink.Bridge{LinkAttrs: attrs}
	port, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr("198.18.0.2/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkAdd(br), netlink.AddrDel(port, address),
		netlink.LinkSetMaster(port, br), netlink.AddrAdd(br, address),
		netlink.LinkSetUp(br), linked(t.Context(), "br0")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = netlink.LinkDel(br)
		_ = os.WriteFile(forwardIP, []byte("0"), 0) // which stays on for another bridge
	}()
	route := &netlink.Route{LinkIndex: br.Index, Gw: net.IPv4(198, 18, 0, 1)}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	through := routedBy(t, outside)
	for _, isUplink := range []bool{true, false} {
		if !isUplink {
			if err := netlink.RouteDel(route); err != nil {
				t.Fatal(err)
			}
		}
		b := open(t, cfg)
		g := plug(t, b, "a")
		if isUplink {
			g.mustReach("the world by the bridge", worldServer)
		} else if err := g.reaches(worldServer); err == nil {
			t.Error("the world is reached through a bridge that is no uplink")
		}
		if !isWhole(b) {
			t.Error("the rules are taken for broken")
		}
		if isUplink {
			if through() {
				t.Error("who is on the uplink is routed to another network")
			}
			unruled(t, b, func() {
				if !through() {
					t.Error("(a control) without the last rule, nobody is either")
				}
			})
		}
		g.leave(b)
		b.Close()
		if is, err := os.ReadFile(forwardIP); err != nil || (is[0] == '0') != isUplink {
			t.Errorf("a bridge is the uplink: %v; ip_forward is %q then, %v", isUplink, is, err)
		}
	}
}

// routedBy returns a func that reports whether the host routes from the world to another network of
// its own.
func routedBy(t *testing.T, outside *os.File) func() bool {
	t.Helper()
	const word = "from the world"
	far := tun(t, "far", "10.78.0.1/24")
	if err := netns.Inside(outside, func() error {
		return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(198, 18, 0, 2),
			Dst: &net.IPNet{IP: net.IPv4(10, 78, 0, 0), Mask: net.CIDRMask(24, 32)}})
	}); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		if err := netns.Inside(outside, func() error {
			conn, err := net.Dial("udp", "10.78.0.2:9")
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(word))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 2048)
		for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
			n, _ := unix.Read(far, buffer) // it does not wait
			if n > 0 && bytes.Contains(buffer[:n], []byte(word)) {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	}
}

// isWhole reports whether the kernel has the rules of the bridge.
func isWhole(b *Bridge) bool {
	b.writes.Lock()
	defer b.writes.Unlock()
	conn, err := nftables.New()
	return err == nil && (rules{Bridge: b}).whole(conn)
}
