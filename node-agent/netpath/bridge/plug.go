package bridge

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func (b *Bridge) portName(number int) string { return b.Name + "p" + strconv.Itoa(number) }

// numberOf returns the number of the port whose address the NIC has.
func (b *Bridge) numberOf(nic *sandbox.NIC) (int, error) {
	for number := range b.leases.size {
		if address, err := b.Network.Address(number); err == nil && address == nic.Address {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%s is no address of bridge %s", nic.Address, b.Name)
}

// Plug returns a new network namespace whose eth0 is a port of the bridge, with the address of nic.
// It lives as long as the file is open or a process is in it, and the port with it.
func (b *Bridge) Plug(
	ctx context.Context, nic *sandbox.NIC,
) (namespace *os.File, err error) {
	if namespace, err = netns.New(); err != nil {
		return nil, err
	}
	if err := b.veth(ctx, nic, namespace); err != nil {
		namespace.Close()
		return nil, fmt.Errorf("port of bridge %s: %w", b.Name, err)
	}
	return namespace, nil
}

func (b *Bridge) veth(ctx context.Context, nic *sandbox.NIC, namespace *os.File) error {
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil {
		return err
	}
	port := &netlink.Veth{PeerName: device, PeerHardwareAddr: mac,
		PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := b.connect(nic, port, &port.LinkAttrs); err != nil {
		return err
	}
	if err := netns.Inside(namespace, func() error { return address(nic) }); err != nil {
		return err
	}
	if err := b.begins(ctx, port); err != nil {
		return err
	}
	return netns.Inside(namespace, func() error { return linked(ctx, device) })
}

// Tap returns a tap device that is a port of the bridge, for the VMM of a guest that has the MAC
// and the address of nic. It lives as long as the file is open, in whatever process.
func (b *Bridge) Tap(ctx context.Context, nic *sandbox.NIC) (tap *os.File, err error) {
	port := &netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP, Queues: 1, NonPersist: true,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_TUN_EXCL}
	err = b.connect(nic, port, &port.LinkAttrs)
	if err == nil {
		err = b.begins(ctx, port)
	}
	if err == nil {
		return port.Fds[0], nil
	}
	for _, file := range port.Fds {
		file.Close()
	}
	return nil, fmt.Errorf("tap of bridge %s: %w", b.Name, err)
}

// connect makes the device, whose attributes these are, the port that goes with nic.
func (b *Bridge) connect(nic *sandbox.NIC, port netlink.Link, attrs *netlink.LinkAttrs) error {
	number, err := b.numberOf(nic)
	if err != nil {
		return err
	}
	*attrs = netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = b.portName(number), b.link.Index
	unplug(attrs.Name) // of a sandbox whose end is still under way in the kernel
	if err := netlink.LinkAdd(port); err != nil {
		return err
	}
	if err := netlink.LinkSetIsolated(port, !b.shared); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	// A frame to a link-local MAC passes the bridge, and the host would answer ARP at the port.
	if err := netlink.LinkSetARPOff(port); err != nil {
		return fmt.Errorf("ARP: %w", err)
	}
	return withoutIPv6(attrs.Name)
}

// begins has the port forward.
func (b *Bridge) begins(ctx context.Context, port netlink.Link) error {
	if err := netlink.LinkSetUp(port); err != nil {
		return err
	}
	if err := linked(ctx, port.Attrs().Name); err != nil {
		return err
	}
	return linked(ctx, b.Name) // it has no link without a port
}

// linked returns when the device sends, and its bridge forwards, which begins a moment after it is
// up. A first packet that was lost would be sent again after a second.
func linked(ctx context.Context, name string) error {
	// The kernel may be busy with the ends of hundreds of others, and each look asks for its lock.
	const within, most = 20 * time.Second, 20 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("none came in %v", within))
	defer cancel()
	for look := 200 * time.Microsecond; ; look = min(2*look, most) {
		late := context.Cause(ctx)
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		state := link.Attrs().OperState
		if _, isTap := link.(*netlink.Tuntap); isTap && state == netlink.OperUnknown {
			return nil // its link is there from the first, and the kernel says nothing of it
		}
		if state == netlink.OperUp {
			return nil
		}
		if late != nil {
			return fmt.Errorf("%s has no link: %w", name, late)
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
}

const device = "eth0" // of a sandbox

// address gives the device of this network namespace the address of nic, and a way out.
func address(nic *sandbox.NIC) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(nic.Address)}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
		Gw: nic.Gateway.AsSlice()})
}

// unplug removes a device, if it is there.
func unplug(name string) {
	if link, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(link)
	}
}

// portsOf lists the ports of a bridge that are there.
func portsOf(bridge string) (names []string, err error) {
	links, err := netns.Links()
	for _, link := range links {
		number, is := strings.CutPrefix(link.Attrs().Name, bridge+"p")
		if _, err := strconv.Atoi(number); is && err == nil {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, err
}
