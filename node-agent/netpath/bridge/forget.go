package bridge

import (
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
)

// A memory is the kernel's table of connections. To forget is to read all of it, so those who come
// while it is read wait, and one more reading serves them all.
type memory struct {
	erase   func(addresses) error
	reading sync.Mutex

	mu   sync.Mutex
	next *reading // that has not begun; nil: nobody waits for one
}

type reading struct {
	of   addresses
	done chan struct{}
	err  error
}

// forget has the kernel forget the connections of an address, which the next sandbox there would
// inherit: what is sent to the former one from outside would be led to it.
func (m *memory) forget(address netip.Addr) error {
	m.mu.Lock()
	r, first := m.next, m.next == nil
	if first {
		r = &reading{of: addresses{}, done: make(chan struct{})}
		m.next = r
	}
	r.of[address] = true
	m.mu.Unlock()
	if first {
		m.read(r)
	}
	<-r.done
	return r.err
}

func (m *memory) read(r *reading) {
	m.reading.Lock()
	defer m.reading.Unlock()
	m.mu.Lock()
	m.next = nil // nobody joins this one any more
	m.mu.Unlock()
	r.err = m.erase(r.of)
	close(r.done)
}

// Addresses implement netlink.CustomConntrackFilter.
type addresses map[netip.Addr]bool

// MatchConntrackFlow reports whether one of them has begun a connection, or has been led to by a
// published port.
func (all addresses) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	began, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return all[began.Unmap()] || all[answers.Unmap()]
}

func erase(all addresses) error {
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable,
		netlink.InetFamily(netlink.FAMILY_V4), all)
	return err
}
