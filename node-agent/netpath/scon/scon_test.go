package scon

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

const inside = "FASTIOV_TEST_SCON_INSIDE"

// All tests run in a network and a mount namespace of their own.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A place is a network namespace; the zero place is the test's own.
type place struct{ namespace *os.File }

func (p place) do(t testing.TB, f func() error) {
	t.Helper()
	if err := p.try(f); err != nil {
		t.Fatal(err)
	}
}

func (p place) try(f func() error) error {
	if p.namespace == nil {
		return f()
	}
	return netns.Inside(p.namespace, f)
}

// run runs a script there.
func (p place) run(t testing.TB, script string) {
	t.Helper()
	p.do(t, func() error {
		out, err := exec.Command("bash", "-exc", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// A triple is a host with a bridge, a container and a server.
//
//	container eth0 10.9.0.2 ═ p0, br0 10.9.0.1, host, nic 198.18.0.2 ═ wire 198.18.0.1 server
type triple struct{ container, host, server place }

func newPlace(t testing.TB) place {
	t.Helper()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { namespace.Close() })
	return place{namespace}
}

const (
	containerMAC = "02:00:00:00:00:02"
	bridgeMAC    = "02:00:00:00:00:01"
	nicMAC       = "02:00:00:00:01:02"
	serverMAC    = "02:00:00:00:01:01"
)

// build makes the triple around a host.
func build(t testing.TB, host place) triple {
	t.Helper()
	for _, tool := range []string{"iptables", "nft", "conntrack", "tc", "sysctl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: apt-get install iptables nftables conntrack iproute2 procps",
				tool)
		}
	}
	w := triple{container: newPlace(t), host: host, server: newPlace(t)}
	t.Cleanup(func() { w.clear(t) })
	host.run(t, `
ip link set lo up
ip link add br0 address `+bridgeMAC+` type bridge
sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.br0.disable_ipv6=1
ip addr add 10.9.0.1/24 dev br0
ip link set br0 up`)
	host.port(t, w.container, "p0", containerMAC, "10.9.0.2")
	host.cable(t, w.server)
	host.run(t, `
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.icmp_ratelimit=0 net.ipv4.conf.all.send_redirects=0
sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1
sysctl -qw net.netfilter.nf_conntrack_tcp_ignore_invalid_rst=1
iptables -P FORWARD DROP
iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A FORWARD -i br0 -o nic -j ACCEPT
iptables -A INPUT -i nic -j DROP
iptables -t nat -A POSTROUTING -s 10.9.0.0/24 ! -o br0 -j MASQUERADE
iptables -t nat -A PREROUTING -i nic -p tcp --dport 8080 -j DNAT --to 10.9.0.2:80
iptables -t nat -A PREROUTING -i nic -p udp --dport 8080 -j DNAT --to 10.9.0.2:80
iptables -A FORWARD -o br0 -p tcp -d 10.9.0.2 --dport 80 -j ACCEPT
iptables -A FORWARD -o br0 -p udp -d 10.9.0.2 --dport 80 -j ACCEPT`)
	return w
}

// port gives a container a port of the bridge.
func (p place) port(t testing.TB, container place, name, mac, address string) {
	t.Helper()
	p.do(t, func() error {
		hardware, _ := net.ParseMAC(mac)
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		port := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0",
			PeerHardwareAddr: hardware, PeerNamespace: netlink.NsFd(container.namespace.Fd())}
		port.Name, port.MasterIndex = name, bridge.Attrs().Index
		if err := netlink.LinkAdd(port); err != nil {
			return err
		}
		return netlink.LinkSetUp(port)
	})
	container.run(t, `
ip addr add `+address+`/24 dev eth0
ip link set eth0 up
ip neigh add 10.9.0.1 lladdr `+bridgeMAC+` dev eth0
ip route add default via 10.9.0.1`)
	p.run(t, "ip neigh add "+address+" lladdr "+mac+" dev br0")
}

// cable connects the host's NIC to the server.
func (p place) cable(t testing.TB, server place) {
	t.Helper()
	p.do(t, func() error {
		hardware, _ := net.ParseMAC(serverMAC)
		nic := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "wire",
			PeerHardwareAddr: hardware, PeerNamespace: netlink.NsFd(server.namespace.Fd())}
		nic.Name = "nic"
		nic.HardwareAddr, _ = net.ParseMAC(nicMAC)
		return netlink.LinkAdd(nic)
	})
	p.run(t, `ip addr add 198.18.0.2/24 dev nic
ip link set nic up
ip neigh add 198.18.0.1 lladdr `+serverMAC+` dev nic
ip route add default via 198.18.0.1`)
	server.run(t, `ip addr add 198.18.0.1/24 dev wire
ip link set wire up
ip neigh add 198.18.0.2 lladdr `+nicMAC+` dev wire
ip route add 203.0.113.0/24 dev lo`)
}

// clear takes the host's side away, for the next test.
func (w triple) clear(t testing.TB) {
	t.Helper()
	w.host.run(t, `for l in $(ip -o link show type veth | sed -n 's/^[0-9]*: \([^@:]*\).*/\1/p'); do
	ip link del $l
done
ip link del br0
nft flush ruleset
conntrack -F`)
}

// config returns the description of an attachment to the host's bridge, with a place for its pins.
func config(t testing.TB) Config {
	t.Helper()
	if _, err := findGeneration(); err != nil {
		t.Skipf("this kernel has no express path: %v", err)
	}
	pins := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(pins, 0) })
	return Config{Bridge: "br0", Uplinks: []string{"nic"}, Records: t.TempDir(),
		Pins: filepath.Join(pins, "scon"), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// attach attaches to the host's bridge.
func attach(t testing.TB, as ...func(*Config)) *Scon {
	t.Helper()
	cfg := config(t)
	for _, change := range as {
		change(&cfg)
	}
	s, err := Attach(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := Detach(cfg.Records, cfg.Bridge); err != nil {
			t.Error(err)
		}
	})
	return s
}
