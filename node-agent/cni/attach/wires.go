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
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
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

// inside runs f in a namespace, with a socket for what it asks the kernel there. f must not hand
// work to other goroutines.
func inside(path string, f func(*netlink.Handle) error) error {
	return netns.At(path, func() error { return asking(f) })
}

// asking calls f with a socket in this namespace. The list of its links and a move each take one
// more: a Handle does neither of them.
func asking(f func(*netlink.Handle) error) error {
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer kernel.Close()
	if err := kernel.SetSocketTimeout(netlink.GetSocketTimeout()); err != nil {
		return err
	}
	return f(kernel)
}

// named returns the name that sysfs shows of a device's link; empty: there is none.
func (n Netlink) named(device string) string {
	names, _ := os.ReadDir(filepath.Join(n.Sysfs, "bus/pci/devices", device, "net"))
	if len(names) == 0 {
		return ""
	}
	return names[0].Name()
}

// find returns the link of a device in this namespace, or nil. There may be very many links, so the
// one of the name that it should have is looked at first.
func (n Netlink) find(kernel *netlink.Handle, device, name string) (netlink.Link, error) {
	if name != "" {
		link, err := kernel.LinkByName(name)
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

// move takes a link into another namespace, under that name and without the other names that its
// holder gave it. The kernel takes it down. It is one message, because the kernel waits for all its
// CPUs, with all links locked, at each of several. To the kernel it is two steps: the link goes
// under its present name, unless the other namespace has that, and is renamed there. So where the
// new name is taken, the link has moved all the same.
func move(kernel *netlink.Handle, link netlink.Link, to *os.File, name string) error {
	for _, other := range link.Attrs().AltNames {
		if err := kernel.LinkDelAltName(link, other); err != nil {
			return err
		}
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	which := nl.NewIfInfomsg(unix.AF_UNSPEC)
	which.Index = int32(link.Attrs().Index)
	req.AddData(which)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.Fd()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Plug implements Wires.
func (n Netlink) Plug(p Port) (mtu int, err error) {
	if p.Driver == vf.VFIO {
		return n.dummy(p)
	}
	to, err := os.Open(p.Netns) // once: its path may come to lead to another
	if err != nil {
		return 0, err
	}
	defer to.Close()
	if err := n.give(p, to); err != nil {
		return 0, err
	}
	err = netns.Inside(to, func() error {
		return asking(func(kernel *netlink.Handle) error {
			link, err := n.find(kernel, p.Device, p.Name)
			if err != nil || link == nil {
				return errors.Join(fmt.Errorf("its interface has not come into %s", p.Netns), err)
			}
			mtu = cmp.Or(p.MTU, link.Attrs().MTU)
			return dress(kernel, link, p)
		})
	})
	return mtu, err
}

// give moves a port's link out of this namespace into another.
func (n Netlink) give(p Port, to *os.File) error {
	return asking(func(kernel *netlink.Handle) error {
		link, err := n.find(kernel, p.Device, n.named(p.Device))
		if err != nil || link == nil {
			return errors.Join(errors.New("its interface is not in the agent's namespace"), err)
		}
		if err := move(kernel, link, to, p.Name); err != nil {
			return fmt.Errorf("moving %s into %s as %s: %w", link.Attrs().Name, p.Netns, p.Name,
				err)
		}
		return nil
	})
}

// dummy makes an interface that has the VF's MAC and addresses, for runtimes that hand a VF to a
// VMM and read from an interface what the guest is to have.
func (n Netlink) dummy(p Port) (mtu int, err error) {
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return 0, err
	}
	err = inside(p.Netns, func(kernel *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = p.Name, mac, p.MTU
		if err := kernel.LinkAdd(n.Dummy(attrs)); err != nil {
			return fmt.Errorf("a dummy interface %s: %w; modprobe dummy", p.Name, err)
		}
		link, err := kernel.LinkByName(p.Name)
		if err != nil {
			return err
		}
		mtu = link.Attrs().MTU
		return dress(kernel, link, p)
	})
	return mtu, err
}

// dress gives a link of the port's name in this namespace all else that the port says, and sets it
// up.
func dress(kernel *netlink.Handle, link netlink.Link, p Port) error {
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return fmt.Errorf("mac: %s: %w", p.MAC, err)
	}
	refused := setMAC(kernel, link, mac)
	if p.MTU != 0 && link.Attrs().MTU != p.MTU {
		if err := kernel.LinkSetMTU(link, p.MTU); err != nil {
			return fmt.Errorf("mtu: %d: %w", p.MTU, err)
		}
	}
	if err := kernel.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	// A driver that takes no MAC may take the card's as it is set up, at once or a little later.
	for try := 0; refused != nil && try < 50; try++ {
		time.Sleep(20 * time.Millisecond)
		if link, err = kernel.LinkByName(p.Name); err != nil {
			return err
		}
		refused = setMAC(kernel, link, mac)
	}
	if refused == nil {
		return address(kernel, link, p)
	}
	return fmt.Errorf("mac: %s: %w; its driver takes none while it is bound", p.MAC, refused)
}

// setMAC gives a link a MAC, unless it has that.
func setMAC(kernel *netlink.Handle, link netlink.Link, mac net.HardwareAddr) error {
	if bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	return kernel.LinkSetHardwareAddr(link, mac)
}

// address gives a link the port's addresses and routes.
func address(kernel *netlink.Handle, link netlink.Link, p Port) error {
	for _, ip := range p.IPs {
		a := &netlink.Addr{IPNet: ipNet(ip.Address)}
		if ip.Address.Addr().Is6() {
			allow6(p.Name)
			a.Flags = unix.IFA_F_NODAD // the address is this VF's alone, and is needed now
		}
		if err := kernel.AddrAdd(link, a); err != nil {
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
		if err := kernel.RouteAdd(route); err != nil {
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
	return inside(p.Netns, func(kernel *netlink.Handle) error {
		link, err := kernel.LinkByName(p.Name)
		if err != nil {
			return err
		}
		return address(kernel, link, p)
	})
}

// Unplug implements Wires.
func (n Netlink) Unplug(p Port) error {
	home, err := os.Open(ownNamespace)
	if err != nil {
		return err
	}
	defer home.Close()
	err = inside(p.Netns, func(kernel *netlink.Handle) error {
		link, err := n.find(kernel, p.Device, p.Name)
		if err != nil {
			return err
		}
		if link == nil {
			return n.removeDummy(kernel, p)
		}
		return comeHome(kernel, link, home)
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) && !isNamespace(p.Netns) {
		return nil
	}
	return err
}

// comeHome moves a link out of a container. It is named before, since it comes under the name that
// it has: nobody on the host is to hear of one that a tenant chose.
func comeHome(kernel *netlink.Handle, link netlink.Link, home *os.File) error {
	nobodys := "vf" + strings.ToLower(rand.Text()[:13])
	err := kernel.LinkSetDown(link) // before Linux 6.2 one that is up keeps its name
	if err == nil {
		err = kernel.LinkSetName(link, nobodys)
	}
	if err := move(kernel, link, home, nobodys); err != nil {
		return err
	}
	if err != nil { // as where a process in there sets it up again: it comes home all the same
		return fmt.Errorf("naming %s %s: %w", link.Attrs().Name, nobodys, err)
	}
	return nil
}

// isNamespace reports whether a path still leads to a namespace: what is left of a bind mount that
// was taken away is an empty file.
func isNamespace(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// removeDummy removes the dummy of a VF by vfio, told by its name, kind and MAC.
func (n Netlink) removeDummy(kernel *netlink.Handle, p Port) error {
	link, err := kernel.LinkByName(p.Name)
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
	return kernel.LinkDel(link)
}

// Check implements Wires.
func (n Netlink) Check(p Port) error {
	return inside(p.Netns, func(kernel *netlink.Handle) error {
		link, err := kernel.LinkByName(p.Name)
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
		if err := checkAddresses(kernel, link, p); err != nil {
			return err
		}
		return checkRoutes(kernel, link, p)
	})
}

func checkAddresses(kernel *netlink.Handle, link netlink.Link, p Port) error {
	has, err := kernel.AddrList(link, netlink.FAMILY_ALL)
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

// checkRoutes looks in all tables where a route names none: another plugin may have moved it.
func checkRoutes(kernel *netlink.Handle, link netlink.Link, p Port) error {
	if len(p.Routes) == 0 {
		return nil
	}
	has, err := kernel.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{
		LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC,
	}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, r := range p.Routes {
		gw := gatewayOf(r, p.IPs)
		if !slices.ContainsFunc(has, func(now netlink.Route) bool { return isRoute(now, r, gw) }) {
			by := ""
			if gw.IsValid() {
				by = fmt.Sprintf(" by %s", gw)
			}
			return fmt.Errorf("interface %s has lost its route to %s%s", p.Name, r.Dst, by)
		}
	}
	return nil
}

func isRoute(now netlink.Route, r cni.Route, gw netip.Addr) bool {
	to := "" // the kernel names no destination of a default route
	if now.Dst != nil {
		to = now.Dst.String()
	}
	byDefault := r.Dst.Bits() == 0 && to == "" && r.Dst.Addr().Is4() == (now.Family == unix.AF_INET)
	by, _ := netip.AddrFromSlice(now.Gw)
	return (byDefault || to == ipNet(r.Dst.Masked()).String()) && by.Unmap() == gw &&
		(r.Table == nil || now.Table == *r.Table) &&
		(r.Priority == 0 || now.Priority == r.Priority)
}
