package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

const (
	// The kernel gives a bridge no more than 1023 ports.
	maxPorts = 1023
	// A port's name is that of its bridge, p, and up to four digits; a name has 15 bytes.
	maxName = 10
)

// Config describes a bridge. The network it serves is the network namespace of the caller.
type Config struct {
	Name string // of the bridge, of the tables, and the front of the ports' names
	Dir  string // of the leases, and of what was there before
	// The network behind the bridge; of what is left out, the first addresses of a network that
	// no route of the host leads to. Without a DNS server, the gateway passes questions on to the
	// host's.
	Network   startup.Network
	Resolvers string // the host's resolv.conf, if not the usual one
	// shared lets sandboxes reach each other, and the host: a control of tests.
	shared bool
	Log    *slog.Logger
}

// A Bridge is the host's end of the sandboxes' network. It implements startup.NetPath.
type Bridge struct {
	Config
	leases   *leases
	uplinks  []string // bridges by which the host itself goes out, as one with virtual machines
	taken    ports
	writes   sync.Mutex     // of rules, with the change that they follow: each writes all
	written  map[string]int // how many rules each chain has
	link     *netlink.Bridge
	forwards bool            // the host does only for this bridge
	closed   map[string]bool // chains of others that take no rule
	guard    *guard
	relay    *relay
	memory   memory
	late     atomic.Pointer[func()] // what hears of a lease that was returned late
}

// A made bridge is what Open has made and changed, for a later agent and for Undo.
type made struct {
	Name    string
	Network startup.Network
	Forward bool // the host did not forward before
	// What the kernel changes when it is told to forward, and not back: the values by their files.
	Settings map[string]string `json:",omitempty"`
}

const madeFile = "bridge.json"

// Open makes the bridge, or takes over what a former agent made.
func Open(cfg Config) (_ *Bridge, err error) {
	if len(cfg.Name) == 0 || len(cfg.Name) > maxName {
		return nil, fmt.Errorf("bridge %q: its name needs 1 to %d bytes", cfg.Name, maxName)
	}
	b := &Bridge{Config: cfg, closed: map[string]bool{}, memory: memory{erase: erase}}
	if err := b.settle(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.leases, err = openLeases(filepath.Join(b.Dir, "ports"), b.ports()); err != nil {
		return nil, err
	}
	if b.uplinks, err = uplinks(b.Name); err != nil {
		return nil, fmt.Errorf("the host's default routes: %w", err)
	}
	b.retake()
	if err := b.make(); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", b.Name, err)
	}
	b.guard, err = openGuard(rules{Bridge: b}, b.Log)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = errors.New("this kernel has no nftables (CONFIG_NF_TABLES); fastiov's own has none")
	}
	if err != nil {
		return nil, fmt.Errorf("rules of bridge %s: %w", b.Name, err)
	}
	if err := os.WriteFile(forwardIP, []byte("1"), 0); err != nil { // never without rules
		return nil, err
	}
	if b.Network.DNS == b.Network.Gateway {
		if b.relay, err = openRelay(b.Network.Gateway, b.Resolvers, b.Log); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// settle decides on the network, and writes down what is about to be made. A bridge with another
// network is taken back first: its sandboxes cannot go on.
func (b *Bridge) settle() error {
	former, err := readMade(b.Dir)
	if err != nil {
		return err
	}
	if !b.Network.Subnet.IsValid() && former != nil {
		b.Network.Subnet = former.Network.Subnet
	}
	if !b.Network.Subnet.IsValid() {
		if b.Network.Subnet, err = freeSubnet(); err != nil {
			return err
		}
	}
	b.Network = filled(b.Network)
	if former != nil && former.Network != b.Network {
		if err := Undo(b.Dir); err != nil {
			return err
		}
		former = nil
	}
	now := made{Name: b.Name, Network: b.Network}
	if former != nil {
		now.Forward, now.Settings = former.Forward, former.Settings
	} else {
		is, err := os.ReadFile(forwardIP)
		if err != nil {
			return err
		}
		if now.Forward = is[0] == '0'; now.Forward {
			now.Settings = followForwarding()
		}
	}
	b.forwards = now.Forward
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil { // Undo has removed it
		return err
	}
	file := filepath.Join(b.Dir, madeFile)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// filled returns the network with all its addresses.
func filled(n startup.Network) startup.Network {
	n.Subnet = n.Subnet.Masked()
	if !n.Gateway.IsValid() {
		n.Gateway = n.Subnet.Addr().Next()
	}
	if !n.First.IsValid() {
		n.First = n.Gateway.Next()
	}
	if !n.DNS.IsValid() {
		n.DNS = n.Gateway
	}
	return n
}

// ports returns how many sandboxes the network and the kernel have room for.
func (b *Bridge) ports() (n int) {
	for n < maxPorts {
		address, err := b.Network.Address(n)
		if err != nil || !b.Network.Subnet.Contains(address.Addr().Next()) { // the broadcast's
			return n
		}
		n++
	}
	return n
}

// freeSubnet returns a network that no route of the host leads to. The latter ones are for a host
// whose company has all of 10.0.0.0/8.
func freeSubnet() (netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("the host's routes: %w", err)
	}
	var candidates []netip.Addr
	for n := byte(201); n < 255; n++ {
		candidates = append(candidates, netip.AddrFrom4([4]byte{10, n, 0, 0}))
	}
	for n := byte(16); n > 0; n-- {
		candidates = append(candidates, netip.AddrFrom4([4]byte{172, 31, 16 * (n - 1), 0}),
			netip.AddrFrom4([4]byte{192, 168, 16 * (n - 1), 0}))
	}
	for _, address := range candidates {
		if subnet := netip.PrefixFrom(address, 20); !taken(routes, subnet) {
			return subnet, nil
		}
	}
	return netip.Prefix{}, errors.New("10.201.0.0/20 to 10.254.0.0/20, 172.31.0.0/16 and" +
		" 192.168.0.0/16 are all in use here; name a network with --subnet")
}

// uplinks returns the bridges, but for our own, that a default route of the host leads by.
func uplinks(own string) (names []string, err error) {
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		return nil, err
	}
	for _, route := range routes {
		if ones := 0; route.Dst != nil {
			if ones, _ = route.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		by := []int{route.LinkIndex}
		for _, hop := range route.MultiPath {
			by = append(by, hop.LinkIndex)
		}
		for _, index := range by {
			link, err := netlink.LinkByIndex(index)
			if err == nil && link.Type() == "bridge" && link.Attrs().Name != own &&
				!slices.Contains(names, link.Attrs().Name) {
				names = append(names, link.Attrs().Name)
			}
		}
	}
	return names, nil
}

func taken(routes []netlink.Route, subnet netip.Prefix) bool {
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		ones, _ := route.Dst.Mask.Size()
		to, ok := netip.AddrFromSlice(route.Dst.IP.To4())
		if ok && ones > 0 && netip.PrefixFrom(to, ones).Overlaps(subnet) {
			return true
		}
	}
	return false
}

// make makes the device and gives it its address.
func (b *Bridge) make() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = b.Name, macOf(b.Network.Gateway)
	b.link = &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(b.link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	link, err := netlink.LinkByName(b.Name)
	if err != nil {
		return err
	}
	if !isOurs(link, b.Network.Gateway) {
		return errors.New("a device of that name is there, and not fastiov's; remove it")
	}
	b.link = link.(*netlink.Bridge)
	if err := withoutIPv6(b.Name); err != nil {
		return err
	}
	if !b.shared {
		if err := trustNoLinkLocal(b.link); err != nil {
			return fmt.Errorf("no_linklocal_learn: %w", err)
		}
	}
	gateway := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(b.Network.Gateway,
		b.Network.Subnet.Bits()))}
	if err := netlink.AddrReplace(b.link, gateway); err != nil {
		return err
	}
	return netlink.LinkSetUp(b.link)
}

// withoutIPv6 leaves a device without an address, so the host hears no router at it.
func withoutIPv6(device string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// trustNoLinkLocal has the bridge learn no MAC from frames to 01:80:c2:00:00:0X. The kernel hands
// these to their port before any rule of bridges sees them.
func trustNoLinkLocal(link *netlink.Bridge) error {
	const noLinkLocalLearn = 1 << 0 // BR_BOOLOPT_NO_LL_LEARN
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Index)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(link.Type()))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(unix.IFLA_BR_MULTI_BOOLOPT,
		append(nl.Uint32Attr(noLinkLocalLearn), nl.Uint32Attr(noLinkLocalLearn)...)) // value, mask
	request.AddData(message)
	request.AddData(info)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// isOurs reports whether a device is a bridge with the MAC that goes with the gateway's address.
func isOurs(link netlink.Link, gateway netip.Addr) bool {
	return link.Type() == "bridge" &&
		link.Attrs().HardwareAddr.String() == macOf(gateway).String()
}

// Lease implements startup.NetPath.
func (b *Bridge) Lease(id string) (startup.Lease, error) {
	return b.leases.lease(id, func(number int) string {
		address, _ := b.Network.Address(number) // of one that the ports were counted by
		return macOf(address.Addr()).String()
	})
}

// Own implements startup.NetPath.
func (b *Bridge) Own(l startup.Lease, rec sandbox.Record) error { return b.leases.own(l, rec) }

// Fault implements startup.NetPath. A port has no errors that would outlive it.
func (b *Bridge) Fault(startup.Lease, string) {}

// Late implements startup.Belated.
func (b *Bridge) Late(returned func()) { b.late.Store(&returned) }

// Return implements startup.NetPath.
func (b *Bridge) Return(l startup.Lease) { b.takeBack(l) }

// takeBack reports whether the lease is returned by now. If not, it will be.
func (b *Bridge) takeBack(l startup.Lease) bool {
	if err := b.withdraw(l); err != nil { // another sandbox would be reached there
		b.Log.Error("a published port is still open; its sandbox's address stays taken until it is"+
			" closed", "bridge", b.Name, "sandbox", l.ID, "err", err)
		b.guard.again(func() {
			if returned := b.late.Load(); b.takeBack(l) && returned != nil {
				(*returned)()
			}
		})
		return false
	}
	published := b.leases.giveBack(l, func() {
		unplug(b.portName(l.Number))
		address, err := b.Network.Address(l.Number)
		if err == nil {
			err = b.memory.forget(address.Addr())
		}
		if err != nil {
			b.Log.Warn("the next sandbox may get what was sent to this one", "sandbox", l.ID,
				"err", err)
		}
	})
	b.taken.free(published...)
	return true
}

// Left implements startup.NetPath.
func (b *Bridge) Left() []startup.Lease { return b.leases.all() }

// Close ends what runs for the bridge. The bridge stays as long as sandboxes have a port; behind
// the last of them, all that was made is taken back.
func (b *Bridge) Close() {
	if b.relay != nil {
		b.relay.close()
	}
	if b.guard != nil {
		b.guard.close()
	}
	if b.leases != nil && len(b.leases.all()) > 0 {
		return
	}
	if err := Undo(b.Dir); err != nil {
		b.Log.Warn("the bridge stays", "bridge", b.Name, "err", err)
	}
}

// Undo takes back what a Bridge with that directory has made. It may run twice.
func Undo(dir string) error {
	m, err := readMade(dir)
	if m == nil || err != nil {
		return err
	}
	if link, err := netlink.LinkByName(m.Name); err == nil && isOurs(link, m.Network.Gateway) {
		ports, err := portsOf(m.Name)
		if err != nil {
			return fmt.Errorf("ports of bridge %s: %w", m.Name, err)
		}
		for _, name := range append(ports, m.Name) {
			unplug(name)
		}
	}
	// Behind the ports: sandboxes may be there yet.
	err = (rules{Bridge: &Bridge{Config: Config{Name: m.Name, Network: m.Network}}}).remove()
	if err != nil {
		err = fmt.Errorf("rules of bridge %s: %w", m.Name, err)
	}
	if m.Forward && !othersForward(m.Name) { // whether or not the rules are gone
		err = errors.Join(err, stopForwarding(m.Settings))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// othersForward reports whether the host has another bridge, but for one by which it goes out:
// somebody, as Docker, may have come later and have found that it forwards already.
func othersForward(own string) bool {
	links, err := netns.Links()
	out, err2 := uplinks(own)
	return err != nil || err2 != nil || slices.ContainsFunc(links, func(link netlink.Link) bool {
		return link.Type() == "bridge" && !slices.Contains(out, link.Attrs().Name)
	})
}

func readMade(dir string) (*made, error) {
	text, err := os.ReadFile(filepath.Join(dir, madeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	m := &made{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it", filepath.Join(dir, madeFile), err)
	}
	return m, nil
}

// macOf returns the MAC that goes with an address: a local one.
func macOf(a netip.Addr) net.HardwareAddr {
	four := a.As4()
	return append(net.HardwareAddr{0x02, 'f'}, four[:]...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
