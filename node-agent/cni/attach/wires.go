package attach

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// Netlink moves interfaces of this kernel.
type Netlink struct {
	// PCI returns the address of the device that a link is of. Only the kernel can say that: a
	// container may give its links any name, alias and MAC.
	PCI func(netlink.Link) string
	// Dummy returns a link that leads nowhere.
	Dummy func(netlink.LinkAttrs) netlink.Link
	// Sysfs is the device tree. It shows the links of the agent's own namespace.
	Sysfs string
}

// Kernel returns the Wires that a node has.
func Kernel() Netlink {
	return Netlink{
		PCI: func(link netlink.Link) string {
			if a := link.Attrs(); a.ParentDevBus == "pci" {
				return a.ParentDev
			}
			return ""
		},
		Dummy: func(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} },
		Sysfs: "/sys",
	}
}

const ownNamespace = "/proc/self/ns/net"

// inside runs f in a namespace. f must not hand work to other goroutines.
func inside(path string, f func() error) error {
	namespace, err := os.Open(path)
	if err != nil {
		return err
	}
	defer namespace.Close()
	return netns.Inside(namespace, f)
}

// find returns the link of a device in this namespace, or nil. A host may have very many links, so
// sysfs is asked first.
func (n Netlink) find(device string) (netlink.Link, error) {
	names, _ := os.ReadDir(filepath.Join(n.Sysfs, "bus/pci/devices", device, "net"))
	for _, file := range names {
		link, err := netlink.LinkByName(file.Name())
		if err == nil && n.PCI(link) == device {
			return link, nil
		}
	}
	links, err := netns.Links()
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		if n.PCI(link) == device {
			return link, nil
		}
	}
	return nil, nil
}

// move takes a link into another namespace, under a name that nobody there can have taken, and
// without the other names that its holder gave it.
func move(link netlink.Link, to *os.File) error {
	if err := netlink.LinkSetDown(link); err != nil {
		return err
	}
	for _, name := range link.Attrs().AltNames {
		if err := netlink.LinkDelAltName(link, name); err != nil {
			return err
		}
	}
	name := "vf" + strings.ToLower(rand.Text()[:13])
	if err := netlink.LinkSetName(link, name); err != nil {
		return err
	}
	return netlink.LinkSetNsFd(link, int(to.Fd()))
}

// Plug implements Wires.
func (n Netlink) Plug(p Port) (mtu int, err error) {
	if p.Driver == vf.VFIO {
		return n.dummy(p)
	}
	namespace, err := os.Open(p.Netns)
	if err != nil {
		return 0, err
	}
	defer namespace.Close()
	link, err := n.find(p.Device)
	if err != nil || link == nil {
		return 0, errors.Join(errors.New("its interface is not in the agent's namespace"), err)
	}
	if err := move(link, namespace); err != nil {
		return 0, fmt.Errorf("moving %s into %s: %w", link.Attrs().Name, p.Netns, err)
	}
	err = netns.Inside(namespace, func() error {
		link, err := n.find(p.Device)
		if err != nil || link == nil {
			return errors.Join(fmt.Errorf("its interface has not come into %s", p.Netns), err)
		}
		mtu = cmp.Or(p.MTU, link.Attrs().MTU)
		return dress(link, p)
	})
	return mtu, err
}

// dummy makes an interface that has the VF's MAC and addresses, for runtimes that hand a VF to a
// VMM and read from an interface what the guest is to have.
func (n Netlink) dummy(p Port) (mtu int, err error) {
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return 0, err
	}
	err = inside(p.Netns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = p.Name, mac, p.MTU
		if err := netlink.LinkAdd(n.Dummy(attrs)); err != nil {
			return fmt.Errorf("a dummy interface %s: %w; modprobe dummy", p.Name, err)
		}
		link, err := netlink.LinkByName(p.Name)
		if err != nil {
			return err
		}
		mtu = link.Attrs().MTU
		return dress(link, p)
	})
	return mtu, err
}

// dress gives a link in this namespace all that the port says, and sets it up.
func dress(link netlink.Link, p Port) error {
	now := link.Attrs()
	if now.Name != p.Name {
		if err := netlink.LinkSetName(link, p.Name); err != nil {
			return fmt.Errorf("naming it %s: %w", p.Name, err)
		}
	}
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return fmt.Errorf("mac: %s: %w", p.MAC, err)
	}
	refused := setMAC(link, mac)
	if p.MTU != 0 && now.MTU != p.MTU {
		if err := netlink.LinkSetMTU(link, p.MTU); err != nil {
			return fmt.Errorf("mtu: %d: %w", p.MTU, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	// A driver that takes no MAC may take the card's as it is set up, at once or a little later.
	for try := 0; refused != nil && try < 50; try++ {
		time.Sleep(20 * time.Millisecond)
		if link, err = netlink.LinkByName(p.Name); err != nil {
			return err
		}
		refused = setMAC(link, mac)
	}
	if refused == nil {
		return address(link, p)
	}
	return fmt.Errorf("mac: %s: %w; its driver takes none while it is bound", p.MAC, refused)
}

// setMAC gives a link a MAC, unless it has that.
func setMAC(link netlink.Link, mac net.HardwareAddr) error {
	if bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	return netlink.LinkSetHardwareAddr(link, mac)
}

// address gives a link the port's addresses and routes.
func address(link netlink.Link, p Port) error {
	for _, ip := range p.IPs {
		a := &netlink.Addr{IPNet: ipNet(ip.Address)}
		if ip.Address.Addr().Is6() {
			allow6(p.Name)
			a.Flags = unix.IFA_F_NODAD // the address is this VF's alone, and is needed now
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s: %w", ip.Address, err)
		}
	}
	for _, r := range p.Routes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r.Dst), MTU: r.MTU,
			AdvMSS: r.AdvMSS, Priority: r.Priority}
		if r.Table != nil {
			route.Table = *r.Table
		}
		if r.Scope != nil {
			route.Scope = netlink.Scope(*r.Scope)
		}
		if gw := gatewayOf(r, p.IPs); gw.IsValid() {
			route.Gw = gw.AsSlice()
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	return nil
}

// allow6 undoes what a runtime may have made the default of its namespaces.
func allow6(name string) {
	file := filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
	_ = os.WriteFile(file, []byte("0"), 0) // where that fails, so does the address
}

// gatewayOf returns the route's own gateway, or else the one that its family has. A route that ends
// at the link has none.
func gatewayOf(r cni.Route, ips []cni.IP) netip.Addr {
	if r.GW.IsValid() || r.Scope != nil && *r.Scope >= int(netlink.SCOPE_LINK) {
		return r.GW
	}
	for _, ip := range ips {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == r.Dst.Addr().Is4() {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Address implements Wires.
func (n Netlink) Address(p Port) error {
	return inside(p.Netns, func() error {
		link, err := netlink.LinkByName(p.Name)
		if err != nil {
			return err
		}
		return address(link, p)
	})
}

// Unplug implements Wires.
func (n Netlink) Unplug(p Port) error {
	home, err := os.Open(ownNamespace)
	if err != nil {
		return err
	}
	defer home.Close()
	err = inside(p.Netns, func() error {
		link, err := n.find(p.Device)
		if err != nil {
			return err
		}
		if link == nil {
			return n.removeDummy(p)
		}
		return move(link, home)
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) && !isNamespace(p.Netns) {
		return nil
	}
	return err
}

// isNamespace reports whether a path still leads to a namespace: what is left of a bind mount that
// was taken away is an empty file.
func isNamespace(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// removeDummy removes the dummy of a VF by vfio, told by its name, kind and MAC.
func (n Netlink) removeDummy(p Port) error {
	link, err := netlink.LinkByName(p.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	kind := n.Dummy(netlink.NewLinkAttrs()).Type()
	if link.Type() != kind || link.Attrs().HardwareAddr.String() != p.MAC {
		return nil
	}
	return netlink.LinkDel(link)
}

// Check implements Wires.
func (n Netlink) Check(p Port) error {
	return inside(p.Netns, func() error {
		link, err := netlink.LinkByName(p.Name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", p.Name, err)
		}
		now := link.Attrs()
		switch {
		case p.Driver == vf.Netdev && n.PCI(link) != p.Device:
			return fmt.Errorf("interface %s is of %s, not of VF %s", p.Name, n.PCI(link), p.Device)
		case now.HardwareAddr.String() != strings.ToLower(p.MAC):
			return fmt.Errorf("interface %s has the MAC %s, not %s",
				p.Name, now.HardwareAddr, p.MAC)
		case now.Flags&net.FlagUp == 0:
			return fmt.Errorf("interface %s is down", p.Name)
		case p.MTU != 0 && now.MTU != p.MTU:
			return fmt.Errorf("interface %s has an MTU of %d, not %d", p.Name, now.MTU, p.MTU)
		}
		return checkAddresses(link, p)
	})
}

func checkAddresses(link netlink.Link, p Port) error {
	has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, ip := range p.IPs {
		found := false
		for _, a := range has {
			found = found || a.IPNet.String() == ipNet(ip.Address).String()
		}
		if !found {
			return fmt.Errorf("interface %s has lost its address %s", p.Name, ip.Address)
		}
	}
	return nil
}
