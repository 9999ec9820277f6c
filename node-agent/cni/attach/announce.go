package attach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
)

// Neighbours may know an address by the MAC of a former container: what they send would reach
// nobody until they ask again. So a new interface says by which MAC its addresses are, once it has
// a link.

// A link is looked for ever more seldom.
const (
	linkWithin = 10 * time.Second
	linkFirst  = 20 * time.Millisecond
	linkSeldom = time.Second
)

// Announce implements Wires. Between two looks it holds nothing of the container's namespace.
func (n Netlink) Announce(ctx context.Context, p Port) error {
	ctx, cancel := context.WithTimeout(ctx, linkWithin)
	defer cancel()
	for wait := linkFirst; ; wait = min(2*wait, linkSeldom) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		said := false
		err := inside(p.Netns, func(kernel *netlink.Handle) error {
			link, err := n.find(kernel, p.Device, p.Name)
			if err != nil || link == nil { // it was taken out again
				return errors.Join(err, errUnplugged)
			}
			said = link.Attrs().OperState == netlink.OperUp
			if !said {
				return nil
			}
			return announce(link, p.IPs)
		})
		if said || err != nil {
			return err
		}
	}
}

var errUnplugged = errors.New("its interface is not in the container any more")

// announce tells all neighbours of a link in this namespace which MAC has the addresses.
func announce(link netlink.Link, ips []cni.IP) error {
	var errs []error
	for _, ip := range ips {
		a, mac := ip.Address.Addr(), link.Attrs().HardwareAddr
		if a.Is4() {
			errs = append(errs, gratuitousARP(link.Attrs().Index, mac, a))
		} else {
			errs = append(errs, unsolicitedNA(link.Attrs().Index, mac, a))
		}
	}
	return errors.Join(errs...)
}

// gratuitousARP asks all for the sender's own address, as RFC 5227 has it.
func gratuitousARP(index int, mac net.HardwareAddr, a netip.Addr) error {
	const ethernet, request = 1, 1
	everybody := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	message := []byte{0, ethernet, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4, 0, request}
	message = append(append(message, mac...), a.AsSlice()...)
	message = append(append(message, make([]byte, 6)...), a.AsSlice()...)
	const protocol = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP&0xff<<8 // in the network's order
	return send(unix.AF_PACKET, unix.SOCK_DGRAM, 0, message, nil, &unix.SockaddrLinklayer{
		Protocol: protocol, Ifindex: index, Halen: 6, Addr: everybody})
}

// unsolicitedNA is a neighbour advertisement of RFC 4861 that overrides what others know.
func unsolicitedNA(index int, mac net.HardwareAddr, a netip.Addr) error {
	const advertisement, override, targetMAC = 136, 1 << 5, 2
	message := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, a.AsSlice()...)
	message = append(append(message, targetMAC, 1), mac...) // the kernel adds the checksum
	all := &unix.SockaddrInet6{ZoneId: uint32(index),
		Addr: netip.MustParseAddr("ff02::1").As16()}
	return send(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, message, func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Bind(fd, &unix.SockaddrInet6{Addr: a.As16(), ZoneId: uint32(index)}))
	}, all)
}

func send(family, kind, protocol int, message []byte, with func(fd int) error,
	to unix.Sockaddr) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if with != nil {
		if err := with(fd); err != nil {
			return err
		}
	}
	return os.NewSyscallError("sendto", unix.Sendto(fd, message, 0, to))
}
