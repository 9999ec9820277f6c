package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/netpath/netpathtest"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

const (
	inside = "FASTIOV_TEST_BRIDGE_INSIDE"
	killed = "FASTIOV_TEST_BRIDGE_KILLED"
)

// All tests run in a network namespace of their own, which is the host of their topology:
//
//	sandbox 10.9.0.2 ═ bridge, host 198.18.0.2 ═ world 198.18.0.1
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(killed) != "":
		untilKilled(os.Getenv(killed))
	case os.Geteuid() != 0 || os.Getenv(inside) != "":
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func config(dir string) Config {
	return Config{
		Name: "fastiov0", Dir: dir, Log: slog.New(slog.DiscardHandler),
		Network: startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/24")},
	}
}

func open(t *testing.T, cfg Config) *Bridge {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A guest is a sandbox on a bridge.
type guest struct {
	*testing.T
	*os.File
	nic   sandbox.NIC
	lease startup.Lease
	vmm   func() // ends its VMM, if it has one
}

func lease(t *testing.T, b *Bridge, id string) guest {
	t.Helper()
	l, err := b.Lease(id)
	if err != nil {
		t.Fatal(err)
	}
	nic := l.NIC
	if nic.Address, err = b.Network.Address(l.Number); err != nil {
		t.Fatal(err)
	}
	nic.Gateway, nic.DNS = b.Network.Gateway, b.Network.DNS
	return guest{T: t, nic: nic, lease: l, vmm: func() {}}
}

func plug(t *testing.T, b *Bridge, id string) guest {
	t.Helper()
	g := lease(t, b, id)
	var err error
	if g.File, err = b.Plug(t.Context(), &g.nic); err != nil {
		t.Fatal(err)
	}
	return g
}

// tap makes a sandbox with a tap. In the place of a VMM something carries the frames between that
// and its network namespace.
func tap(t *testing.T, b *Bridge, id string) guest {
	t.Helper()
	g := lease(t, b, id)
	port, err := b.Tap(t.Context(), &g.nic)
	if err != nil {
		t.Fatal(err)
	}
	if g.File, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	in := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1,
		NonPersist: true, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
	if err := g.do(func() error {
		return errors.Join(netlink.LinkAdd(in), netlink.LinkSetHardwareAddr(in, mac(g.nic.MAC)),
			address(&g.nic), linked(t.Context(), device))
	}); err != nil {
		t.Fatal(err)
	}
	carry := func(to, from *os.File) {
		for frame := make([]byte, 128<<10); ; {
			n, err := from.Read(frame)
			if err != nil {
				return
			}
			_, _ = to.Write(frame[:n])
		}
	}
	go carry(port, in.Fds[0])
	go carry(in.Fds[0], port)
	g.vmm = func() { port.Close(); in.Fds[0].Close() }
	return g
}

func (g guest) leave(b *Bridge) {
	g.vmm()
	g.Close()
	b.Return(g.lease)
}

// do runs f in the guest's network.
func (g guest) do(f func() error) error { return netns.Inside(g.File, f) }

// reaches reports whether a TCP connection to address comes about.
func (g guest) reaches(address string) error {
	return g.do(func() error {
		conn, err := net.DialTimeout("tcp4", address, time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// mustReach is reaches where it has to: a machine that is busy may need more than a second.
func (g guest) mustReach(what, address string) {
	g.Helper()
	soon(g.T, what, func() error { return g.reaches(address) })
}

// serve listens on address in this thread's network until the test ends.
func serve(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			} else if err == nil {
				_, _ = io.WriteString(conn, conn.RemoteAddr().String())
				conn.Close()
			}
		}
	}()
}

const worldServer = "198.18.0.1:80"

// world is a network behind the host, with a server.
func world(t *testing.T) (outside *os.File) {
	t.Helper()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: device,
		PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { namespace.Close(); _ = netlink.LinkDel(link) })
	up := func(name, address string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		addr, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
	}
	if err := up("uplink", "198.18.0.2/24"); err != nil {
		t.Fatal(err)
	}
	if err := netns.Inside(namespace, func() error {
		if err := up(device, "198.18.0.1/24"); err != nil {
			return err
		}
		serve(t, worldServer)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(linked(t.Context(), attrs.Name),
		netns.Inside(namespace, func() error { return linked(t.Context(), device) })); err != nil {
		t.Fatal(err)
	}
	connected(t)
	return namespace
}

// Tests with the express path begin it when the host has its uplink.
var connected = func(*testing.T) {}

// nothingLeft checks that the host is as it was before a bridge was there.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	links, err := netns.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if strings.HasPrefix(link.Attrs().Name, "fastiov0") {
			t.Errorf("left over: device %s", link.Attrs().Name)
		}
	}
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	for _, table := range tables {
		if table.Name == "fastiov0" {
			t.Errorf("left over: table %s of family %d", table.Name, table.Family)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if is, err := os.ReadFile(forwardIP); err != nil || is[0] != '0' {
		t.Errorf("left over: ip_forward is %q, %v", is, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left over: %s, %v", dir, err)
	}
}

func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.Network = startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/29"),
		First: netip.MustParseAddr("10.9.0.5")}
	netpathtest.Subject{
		Open: func() (startup.NetPath, func(), error) {
			b, err := Open(cfg)
			if err != nil {
				return nil, nil, err
			}
			return b, b.Close, nil
		},
		Kind: Kind, NICs: 2,
	}.Run(t)
	nothingLeft(t, cfg.Dir)
}

// A start that was given up waits no longer for a link, and one error says so, not one for each
// device.
func TestAStartThatIsGivenUpWaitsForNoLink(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bridge")
	b := open(t, config(dir))
	g := lease(t, b, "one")
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		namespace.Close()
		b.Return(g.lease)
		b.Close()
		nothingLeft(t, dir)
	}()
	port := &netlink.Veth{PeerName: device, PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := b.connect(&g.nic, port, &port.LinkAttrs); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	err = b.begins(ctx, port) // its other end is never up
	if !errors.Is(err, enough) || err.Error() != port.Name+" has no link: enough" {
		t.Errorf("%v", err)
	}
}

// A sandbox reaches the world under the host's address, and its port dies with its namespace, or
// with its VMM.
func TestASandboxReachesTheWorld(t *testing.T) {
	for name, join := range joins {
		t.Run(name, func(t *testing.T) { reachesTheWorld(t, join) })
	}
}

// joins are the ways in which sandboxes have their ports.
var joins = map[string]func(*testing.T, *Bridge, string) guest{"plugged": plug, "by a tap": tap}

func reachesTheWorld(t *testing.T, join func(*testing.T, *Bridge, string) guest) {
	dir := filepath.Join(t.TempDir(), "bridge")
	b := open(t, config(dir))
	world(t)
	g := join(t, b, "a")
	if g.nic.MAC != "02:66:0a:09:00:02" {
		t.Errorf("its MAC is %s", g.nic.MAC)
	}
	if err := g.do(func() error {
		conn, err := net.DialTimeout("tcp4", worldServer, 20*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		from, err := io.ReadAll(conn)
		if !strings.HasPrefix(string(from), "198.18.0.2:") {
			t.Errorf("the world sees %s", from)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	b.Close()
	if _, err := netlink.LinkByName("fastiov0p0"); err != nil {
		t.Errorf("the port of a sandbox that its agent leaves: %v", err)
	}
	b = open(t, config(dir))
	g.mustReach("the world, after another agent", worldServer)
	left := b.Left()
	if len(left) != 1 || left[0].ID != "a" {
		t.Fatalf("left is %+v", left)
	}
	g.vmm()
	g.Close()
	soon(t, "its port", func() error {
		if _, err := netlink.LinkByName("fastiov0p0"); err == nil {
			return errors.New("it is still there")
		}
		return nil
	})
	g.leave(b)
	b.Close()
	nothingLeft(t, dir)
}

// Without a network of its own, the bridge takes one that the host does not use, and keeps it.
func TestItsNetworkIsFree(t *testing.T) {
	routes := []netlink.Route{{Dst: ipNet(netip.MustParsePrefix("10.201.0.0/16"))},
		{Dst: ipNet(netip.MustParsePrefix("10.202.8.0/24"))}, {}}
	for subnet, want := range map[string]bool{"10.201.0.0/20": true, "10.202.0.0/20": true,
		"10.203.0.0/20": false} {
		if taken(routes, netip.MustParsePrefix(subnet)) != want {
			t.Errorf("%s: want taken %v", subnet, want)
		}
	}
	cfg := config(filepath.Join(t.TempDir(), "bridge"))
	cfg.Network = startup.Network{}
	b := open(t, cfg)
	defer func() { nothingLeft(t, cfg.Dir) }()
	if n := b.Network; n.Subnet.String() != "10.201.0.0/20" ||
		n.Gateway.String() != "10.201.0.1" || n.DNS != n.Gateway || b.ports() != maxPorts {
		t.Errorf("%+v with %d ports", n, b.ports())
	}
	g := plug(t, b, "a")
	b.Close()
	b = open(t, cfg)
	if b.Network.Subnet.String() != "10.201.0.0/20" {
		t.Errorf("a later agent has %s", b.Network.Subnet)
	}
	g.leave(b)
	b.Close()
}

// What is not fastiov's is not touched.
func TestADeviceOfThatName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bridge")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "theirs"
	theirs := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(theirs); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkDel(theirs) }()
	cfg := config(dir)
	cfg.Name = "theirs"
	if b, err := Open(cfg); err == nil {
		b.Close()
		t.Error("a bridge of others was taken")
	}
	if _, err := netlink.LinkByName("theirs"); err != nil {
		t.Error(err)
	}
	cfg.Name = "much-too-long"
	if b, err := Open(cfg); err == nil {
		b.Close()
		t.Error("a name was taken that leaves no room for ports")
	}
}

// untilKilled makes and gives back ports until it is killed.
func untilKilled(dir string) {
	b, err := Open(config(dir))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	for n := 0; ; n++ {
		lease, err := b.Lease(fmt.Sprint("sandbox-", n))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		nic := lease.NIC
		nic.Address, _ = b.Network.Address(lease.Number)
		nic.Gateway = b.Network.Gateway
		port, err := b.Plug(context.Background(), &nic)
		if n%3 == 0 && err == nil {
			port.Close()
			port, err = b.Tap(context.Background(), &nic)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		port.Close()
		if n%2 == 0 {
			b.Return(lease)
		}
	}
}

// Wherever an agent is killed, the next one finds all that is left, and takes it back.
func TestNothingIsLostWhenAnAgentIsKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "bridge")
	cfg := config(dir)
	kept := map[string]bool{}
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := 0; round < rounds || len(kept) == 0 && round < 10*rounds; round++ {
		agent := exec.Command("/proc/self/exe")
		agent.Env = append(os.Environ(), killed+"="+dir)
		out, err := agent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		if round%4 == 0 { // at any time, also while it opens
			time.Sleep(time.Duration(round) * time.Millisecond)
		} else if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
			t.Fatal(err)
		} else {
			time.Sleep(time.Duration(round*7) * time.Millisecond)
		}
		_ = agent.Process.Kill()
		rest, _ := io.ReadAll(out)
		if err := agent.Wait(); agent.ProcessState.ExitCode() != -1 {
			t.Fatalf("%s, %v", rest, err)
		}
		b := open(t, cfg)
		for _, lease := range b.Left() {
			kept[lease.ID] = true
			b.Return(lease)
		}
		ports, err := portsOf(cfg.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range ports { // their namespaces may still be dying
			unplug(name)
		}
		b.Close()
		nothingLeft(t, dir)
	}
	if len(kept) == 0 {
		t.Error("no agent was killed with a lease")
	}
}

// The files of leases are another's after a crash of the machine, or damaged.
func TestDamagedFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bridge")
	cfg := config(dir)
	b := open(t, cfg)
	g := plug(t, b, "a")
	b.Close()
	ports := filepath.Join(dir, "ports")
	for name, text := range map[string]string{"0": "{", "7": "", "1.new": "half"} {
		if err := os.WriteFile(filepath.Join(ports, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b = open(t, cfg)
	left := b.Left()
	slices.SortFunc(left, func(a, b startup.Lease) int { return a.Number - b.Number })
	if len(left) != 2 || left[0].ID != "" || left[1].Number != 7 {
		t.Errorf("left is %+v", left)
	}
	for _, l := range left {
		b.Return(l)
	}
	g.Close()
	b.Close()
	nothingLeft(t, dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, madeFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := Open(cfg); err == nil || !strings.Contains(err.Error(), madeFile) {
		t.Errorf("%v, %v", b, err)
	}
}
