package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A netlink is a netlink socket: requests that are acknowledged, and notifications. Its few
// messages are put together here by hand.
type netlink struct {
	fd       int
	sequence uint32
	buffer   []byte
}

func openNetlink(family int, groups uint32) (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("no netlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the netlink socket does not bind: %w", err)
	}
	return &netlink{fd: fd, buffer: make([]byte, 32<<10)}, nil
}

// listenUevents hears the kernel announce devices.
func listenUevents() (*netlink, error) { return openNetlink(unix.NETLINK_KOBJECT_UEVENT, 1) }

func (n *netlink) close() { unix.Close(n.fd) }

// receive waits for one datagram. It is not an error that some were lost for want of space, since
// every receiver looks at the state anyway.
func (n *netlink) receive(deadline time.Time) ([]byte, error) {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, errors.New("the time is up")
		}
		timeout := unix.NsecToTimeval(int64(max(left, time.Millisecond)))
		if err := unix.SetsockoptTimeval(n.fd, unix.SOL_SOCKET,
			unix.SO_RCVTIMEO, &timeout); err != nil {
			return nil, err
		}
		size, from, err := unix.Recvfrom(n.fd, n.buffer, 0)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			continue
		case err == unix.ENOBUFS:
			return nil, nil
		case err != nil:
			return nil, err
		}
		// Sent by the kernel, and not by a program that plays it.
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			return n.buffer[:size], nil
		}
	}
}

// request sends a message, its body already in netlink's form.
func (n *netlink) request(kind uint16, flags uint16, body []byte) error {
	n.sequence++
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|flags)
	message = binary.NativeEndian.AppendUint32(message, n.sequence)
	message = binary.NativeEndian.AppendUint32(message, 0)
	return unix.Sendto(n.fd, append(message, body...), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// do sends a request and waits for its acknowledgement.
func (n *netlink) do(kind uint16, flags uint16, body []byte) error {
	if err := n.request(kind, unix.NLM_F_ACK|flags, body); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		data, err := n.receive(deadline)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(data)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR || m.Header.Seq != n.sequence || len(m.Data) < 4 {
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return unix.Errno(-code)
			}
			return nil
		}
	}
}

func attribute(body []byte, kind uint16, value []byte) []byte {
	body = binary.NativeEndian.AppendUint16(body, uint16(unix.SizeofRtAttr+len(value)))
	body = binary.NativeEndian.AppendUint16(body, kind)
	body = append(body, value...)
	for len(body)%unix.NLMSG_ALIGNTO != 0 {
		body = append(body, 0)
	}
	return body
}

func (n *netlink) listLinks() error {
	return n.request(unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg))
}

func (n *netlink) setUp(index uint32) error {
	body := make([]byte, unix.SizeofIfInfomsg) // family, type, index, flags, change
	binary.NativeEndian.PutUint32(body[4:], index)
	binary.NativeEndian.PutUint32(body[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(body[12:], unix.IFF_UP)
	return n.do(unix.RTM_NEWLINK, 0, body)
}

// addAddress sets an address without duplicate address detection, because the host has decided
// whose it is.
func (n *netlink) addAddress(index uint32, address netip.Prefix) error {
	ip := address.Addr().AsSlice()
	body := []byte{family(address.Addr()), byte(address.Bits()), unix.IFA_F_NODAD,
		unix.RT_SCOPE_UNIVERSE}
	body = binary.NativeEndian.AppendUint32(body, index)
	body = attribute(attribute(body, unix.IFA_LOCAL, ip), unix.IFA_ADDRESS, ip)
	return n.do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
}

// A route leads what is sent to a prefix to a link.
type route struct {
	table   byte
	link    uint32
	to      netip.Prefix
	gateway netip.Addr // may lie outside the link's own prefix; invalid: there is none
	source  netip.Addr // of those who have not chosen theirs; invalid: the link's
}

func (n *netlink) addRoute(r route) error {
	return n.do(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, r.body())
}

func (n *netlink) deleteRoute(r route) error { return n.do(unix.RTM_DELROUTE, 0, r.body()) }

func (r route) body() []byte {
	scope, flags := byte(unix.RT_SCOPE_LINK), uint32(0)
	if r.gateway.IsValid() {
		scope, flags = unix.RT_SCOPE_UNIVERSE, unix.RTNH_F_ONLINK
	}
	body := []byte{family(r.to.Addr()), byte(r.to.Bits()), 0, 0, r.table, unix.RTPROT_BOOT,
		scope, unix.RTN_UNICAST}
	body = binary.NativeEndian.AppendUint32(body, flags)
	if r.to.Bits() > 0 {
		body = attribute(body, unix.RTA_DST, r.to.Addr().AsSlice())
	}
	if r.gateway.IsValid() {
		body = attribute(body, unix.RTA_GATEWAY, r.gateway.AsSlice())
	}
	if r.source.IsValid() {
		body = attribute(body, unix.RTA_PREFSRC, r.source.AsSlice())
	}
	return attribute(body, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, r.link))
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
