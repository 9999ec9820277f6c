package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// The gate lets programs run while their VF comes up. It is a tun device that has the VF's address,
// and routes which are more specific than the VF's.
//
//	closed   what programs send comes to us, and we keep it
//	open     the VF is up: we send what we kept through it, in order, then what has come meanwhile;
//	         when all of that has left, the gate's routes go, and programs use the VF's
//	gone     the device is removed, as soon as nothing is on its way to it
//	refused  the VF does not come up: who has sent hears that no host can be reached
//
// A packet is sent once: through the gate, or by the VF's own routes. The address is the VF's from
// the start, so a connection that was begun at the gate goes on.
const (
	tunDevice = "/dev/net/tun"
	gateName  = "gate0"

	// What is kept at most. What finds no room is dropped, as by any full queue.
	keptPackets = 1024
	keptBytes   = 1 << 20

	// How long what was sent may wait for a neighbour: a little more than the kernel lets it.
	sentBy = 5 * time.Second
	// How long nothing must have come for the device to be removed, and its longest life. Nothing
	// leads to it then, but a program may be about to send a packet whose way it found before.
	quietFor  = time.Second
	removedBy = 10 * time.Second
	// How long senders hear that nothing can be reached, before the guest ends.
	refusedFor = time.Second
)

type gate struct {
	tun    int
	wake   int // an eventfd that ends the keeping
	rtnl   *netlink
	source netip.Addr
	routes []route

	buffer [64 << 10]byte // of next

	kept    [][]byte
	bytes   int
	told    wire.Gate
	idle    idleness
	keeping chan struct{} // closed when keep has ended
	gone    chan struct{} // closed when the device is removed
}

// openGate makes the device, closed: from now on it keeps what is sent.
func openGate(nic *wire.NIC) (*gate, error) {
	g := &gate{tun: -1, wake: -1, source: nic.Address.Addr(),
		keeping: make(chan struct{}), gone: make(chan struct{})}
	if err := g.build(nic); err != nil {
		g.remove()
		return nil, err
	}
	g.idle.begin()
	go g.keep()
	return g, nil
}

func (g *gate) build(nic *wire.NIC) (err error) {
	if g.tun, err = unix.Open(tunDevice, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC,
		0); err != nil {
		return fmt.Errorf("no tun device: %w", err)
	}
	device, err := unix.NewIfreq(gateName)
	if err != nil {
		return err
	}
	device.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err = unix.IoctlIfreq(g.tun, unix.TUNSETIFF, device); err != nil {
		return fmt.Errorf("the gate's device is not made: %w", err)
	}
	if g.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if g.rtnl, err = openNetlink(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	if err = unix.IoctlIfreq(g.rtnl.fd, unix.SIOCGIFINDEX, device); err != nil {
		return err
	}
	index := device.Uint32()
	if err = g.rtnl.addAddress(index,
		netip.PrefixFrom(g.source, g.source.BitLen())); err != nil {
		return fmt.Errorf("the gate does not take the address %v: %w", g.source, err)
	}
	if err = g.rtnl.setUp(index); err != nil {
		return fmt.Errorf("the gate does not come up: %w", err)
	}
	for _, to := range reaches(nic) {
		r := route{table: unix.RT_TABLE_LOCAL, link: index, to: to, source: g.source}
		if err = g.rtnl.addRoute(r); err != nil {
			return fmt.Errorf("the gate's route to %v is not taken: %w", to, err)
		}
		g.routes = append(g.routes, r)
	}
	return nil
}

// reaches lists the prefixes that the VF will have routes to, in halves. A half is more specific
// than the VF's route and wins over it, as IPv4 wants it. It does so in the local table, which is
// looked into before the main one: there IPv6 refuses a gateway that another link's route leads to.
func reaches(nic *wire.NIC) (prefixes []netip.Prefix) {
	if nic.Gateway.IsValid() {
		prefixes = append(prefixes, halves(netip.PrefixFrom(nic.Gateway, 0))...)
	}
	return append(prefixes, slices.DeleteFunc(halves(nic.Address), func(half netip.Prefix) bool {
		return half.IsSingleIP() && half.Addr() == nic.Address.Addr() // in a network of two
	})...)
}

// halves returns none for a prefix of one address.
func halves(p netip.Prefix) []netip.Prefix {
	if p.IsSingleIP() {
		return nil
	}
	low := netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)
	high := low.Addr().AsSlice()
	high[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	other, _ := netip.AddrFromSlice(high)
	return []netip.Prefix{low, netip.PrefixFrom(other, p.Bits()+1)}
}

// keep keeps what is sent until stop is called.
func (g *gate) keep() {
	defer close(g.keeping)
	for {
		packet := g.next(-1, g.wake)
		if packet == nil {
			return
		}
		if g.told.First == 0 {
			g.told.First = boottime()
			g.idle.settle()
		}
		g.hold(packet)
	}
}

// hold keeps a packet, if there is room.
func (g *gate) hold(packet []byte) {
	if len(g.kept) == keptPackets || g.bytes+len(packet) > keptBytes {
		g.told.Dropped++
		return
	}
	g.kept = append(g.kept, append([]byte(nil), packet...))
	g.bytes += len(packet)
}

// stop ends the keeping. It may be called once.
func (g *gate) stop() {
	unix.Write(g.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-g.keeping
	g.idle.settle()
}

// next returns what is sent next from our address, good until the following call. It returns nil if
// nothing is within the given time (-1: any), or something can be read from the descriptor woken.
// What the kernel says on behalf of the device itself is not for the VF.
func (g *gate) next(within time.Duration, woken int) []byte {
	for until := time.Now().Add(within); ; {
		var timeout *unix.Timespec // nil: for ever
		if within >= 0 {
			left := unix.NsecToTimespec(int64(max(time.Until(until), 0)))
			timeout = &left
		}
		ready := []unix.PollFd{{Fd: int32(g.tun), Events: unix.POLLIN},
			{Fd: int32(woken), Events: unix.POLLIN}}
		n, err := unix.Ppoll(ready, timeout, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 || ready[1].Revents != 0 {
			return nil
		}
		size, err := unix.Read(g.tun, g.buffer[:])
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil { // a program with the right to do so has removed the device
			return nil
		}
		if p, ok := parsePacket(g.buffer[:size]); ok && p.source == g.source {
			return p.bytes
		}
	}
}

// until opens the gate when the VF is up. A VF that does not come up ends the guest.
func (g *gate) until(up func() (uint32, error), h *host) {
	link, err := up()
	if err != nil {
		h.because(err)
		g.refuse()
		h.fail(err)
		return
	}
	told, err := g.open(link)
	if err != nil {
		h.because(err)
		h.fail(err)
		return
	}
	h.opened(told)
}

// open sends what was kept through the VF, and leads programs there. It returns when the VF has the
// traffic, and tells what was kept; the device is removed later.
func (g *gate) open(link uint32) (told wire.Gate, err error) {
	g.stop()
	out, err := openRaw(g.source, link)
	if err != nil {
		g.remove()
		return g.told, err
	}
	g.told.Held = len(g.kept)
	g.drain(out)
	for _, r := range g.routes {
		// A program with the right to do so may have deleted it.
		if failed := g.rtnl.deleteRoute(r); failed != unix.ESRCH {
			err = errors.Join(err, failed)
		}
	}
	told = g.told
	go g.linger(out)
	return told, err
}

// drain sends what is kept, and what comes meanwhile, until nothing waits for a neighbour to
// answer: else what programs send by the VF's own routes would overtake it, or displace it from the
// kernel's queue.
func (g *gate) drain(out raw) {
	for latest := time.Now().Add(sentBy); time.Now().Before(latest); {
		g.send(out)
		if g.told.Open == 0 && len(g.kept) == 0 {
			g.told.Open = boottime()
		}
		wait := time.Duration(0)
		if len(g.kept) > 0 || out.unsent() > 0 {
			wait = time.Millisecond
		}
		packet := g.next(wait, -1)
		if packet == nil && wait == 0 {
			return
		}
		if packet != nil {
			g.hold(packet)
		}
	}
	g.told.Dropped += len(g.kept)
	g.told.Open = cmp.Or(g.told.Open, boottime())
}

// send sends what is kept as far as the kernel takes it now.
func (g *gate) send(out raw) {
	for len(g.kept) > 0 {
		err := out.send(g.kept[0])
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			g.told.Dropped++
		}
		g.bytes -= len(g.kept[0])
		g.kept = g.kept[1:]
	}
}

// linger sends what was on its way to the gate when the routes changed, and removes the device.
func (g *gate) linger(out raw) {
	defer g.remove()
	defer out.close()
	for latest := time.Now().Add(removedBy); time.Now().Before(latest); {
		g.send(out)
		wait := quietFor
		if len(g.kept) > 0 {
			wait = time.Millisecond
		}
		switch packet := g.next(wait, -1); {
		case packet != nil:
			g.hold(packet)
		case wait == quietFor:
			return
		}
	}
}

// refuse tells those who sent, and send now, that no host can be reached, and removes the device.
func (g *gate) refuse() {
	g.stop()
	defer g.remove()
	for _, packet := range g.kept {
		g.answer(packet)
	}
	g.kept = nil
	for latest := time.Now().Add(refusedFor); time.Now().Before(latest); {
		packet := g.next(max(time.Until(latest), 0), -1)
		if packet == nil {
			return
		}
		g.answer(packet)
	}
}

func (g *gate) answer(packet []byte) {
	if p, ok := parsePacket(packet); ok {
		unix.Write(g.tun, p.unreachable())
	}
}

// remove removes the device, and with it what is left of its address and routes.
func (g *gate) remove() {
	for _, fd := range []int{g.tun, g.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if g.rtnl != nil {
		g.rtnl.close()
	}
	close(g.gone)
}

// A raw is a socket that sends whole packets by one link.
type raw struct{ fd int }

// openRaw opens one that takes no more than the kernel queues while it looks for a neighbour.
func openRaw(source netip.Addr, link uint32) (raw, error) {
	const unsent = 64 << 10
	fd, err := unix.Socket(int(family(source)), unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.IPPROTO_RAW)
	if err != nil {
		return raw{}, fmt.Errorf("no raw socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(link)),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, unsent))
	if err != nil {
		unix.Close(fd)
		return raw{}, fmt.Errorf("the raw socket is not the VF's: %w", err)
	}
	return raw{fd}, nil
}

// unsent returns how much of what was sent waits in the kernel, in bytes of its memory.
func (r raw) unsent() int {
	size, _ := unix.IoctlGetInt(r.fd, unix.SIOCOUTQ)
	return size
}

func (r raw) close() { unix.Close(r.fd) }

func (r raw) send(packet []byte) error {
	p, ok := parsePacket(packet)
	if !ok {
		return unix.EINVAL
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: p.target.As16()}
	if p.target.Is4() {
		to = &unix.SockaddrInet4{Addr: p.target.As4()}
	}
	for {
		if err := unix.Sendto(r.fd, packet, 0, to); err != unix.EINTR {
			return err
		}
	}
}
