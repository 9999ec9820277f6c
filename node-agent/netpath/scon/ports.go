package scon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

const (
	flushEvery = time.Second
	idle       = 10 * time.Second // of an entry that the flusher removes
	entries    = 131072           // of all containers
	atMost     = 2048             // of one container, two a connection
)

// follow attaches to the ports that are there, and goes on until Close.
func (s *Scon) follow() error {
	done := make(chan struct{})
	s.ends = append(s.ends, func() { close(done) })
	updates, err := linkUpdates(done)
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	hears, err := s.hear()
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	if err := s.ports(); err != nil {
		return err
	}
	if err := s.permit(); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	s.all.Go(hears)
	s.all.Go(func() { s.keep(updates, done) })
	return nil
}

// linkUpdates hears of links until done, or until the socket has lost messages.
func linkUpdates(done <-chan struct{}) (<-chan netlink.LinkUpdate, error) {
	updates := make(chan netlink.LinkUpdate, 64)
	return updates, netlink.LinkSubscribeWithOptions(updates, done,
		netlink.LinkSubscribeOptions{ErrorCallback: func(error) {}})
}

// keep acts on changes of ports and rules, and flushes.
func (s *Scon) keep(updates <-chan netlink.LinkUpdate, done <-chan struct{}) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	defer func() {
		if updates != nil {
			go func() { // until the subscription has ended, which may be about to send
				for range updates {
				}
			}()
		}
	}()
	for {
		var err error
		select {
		case <-s.closing:
			return
		case _, more := <-updates:
			for more && len(updates) > 0 { // one look is enough for all that is known
				_, more = <-updates
			}
			if !more {
				if updates, err = linkUpdates(done); err != nil {
					s.Log.Error("ports are seen within a second, not at once", "err", err)
					updates = nil
				}
			}
			s.rules = nil // chains of a device go with it, and keep its former name
			if err = s.ports(); err == nil {
				err = s.permit()
			}
		case <-s.look:
			err = s.permit()
		case <-tick.C: // a queue or a program of others is announced by nobody
			s.tolerance()
			s.seen = s.seen && updates != nil
			err = errors.Join(s.portsAgain(), s.permit())
			if err == nil && !time.Now().Before(s.due) {
				_, err = s.flush(0)
			}
		}
		if _, missing := netlink.LinkByIndex(s.bridge); isGone(missing) {
			s.Log.Warn("the bridge is gone, and its express path with it", "bridge", s.Bridge,
				"err", s.undo())
			close(s.ended)
			return
		}
		if err != nil {
			s.Log.Error("the express path is not followed", "bridge", s.Bridge, "err", err)
		}
	}
}

// tolerance tells when somebody has put conntrack's settings back: TCP is regular then.
func (s *Scon) tolerance() {
	is := !s.Settings || ToleratesGaps()
	if s.tolerates && !is {
		s.Log.Warn("TCP stays on the regular path: somebody has set conntrack's settings back;"+
			" set them to 1 again", "bridge", s.Bridge, "settings", strings.Join(Settings, " "))
	}
	s.tolerates = is
}

// undo puts back what was there before.
func (s *Scon) undo() error {
	r, err := readRecord(s.Records, s.Bridge)
	if r == nil || err != nil {
		return err
	}
	return r.undo(s.Records)
}

// portsAgain looks at the ports where those that were announced may not be all: nobody announces a
// default route that goes with its device or address.
func (s *Scon) portsAgain() error {
	uplinks, err := s.uplinks()
	if err == nil && s.seen && slices.Equal(uplinks, s.out) {
		return nil
	}
	return s.ports()
}

// ports attaches to ports that have come, and forgets those that have gone.
func (s *Scon) ports() error {
	s.seen = false
	links, err := netns.Links()
	if err != nil {
		return err
	}
	uplinks, err := s.uplinks()
	if err != nil {
		return fmt.Errorf("the host's default routes: %w", err)
	}
	there := map[int]bool{}
	var all error
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex == s.bridge {
			there[a.Index] = true
		}
		if slices.Contains(uplinks, a.Name) {
			there[a.Index] = true
		}
	}
	s.mu.Lock()
	s.out = uplinks
	var gone []int
	for index := range s.hooked {
		if !there[index] {
			gone = append(gone, index)
		}
	}
	s.mu.Unlock()
	for _, index := range gone {
		all = errors.Join(all, s.leave(index))
	}
	for _, l := range links {
		if !there[l.Attrs().Index] {
			continue
		}
		all = errors.Join(all, s.enter(l))
	}
	s.seen = all == nil
	return all
}

// uplinks returns the names of the devices that containers go out by.
func (s *Scon) uplinks() (names []string, err error) {
	if len(s.Uplinks) > 0 {
		return s.Uplinks, nil
	}
	routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{},
		netlink.RT_FILTER_DST) // to anywhere
	for _, route := range routes {
		by := []int{route.LinkIndex}
		for _, hop := range route.MultiPath {
			by = append(by, hop.LinkIndex)
		}
		for _, index := range by {
			uplink, err := netlink.LinkByIndex(index)
			if err == nil && index != s.bridge && !slices.Contains(names, uplink.Attrs().Name) {
				names = append(names, uplink.Attrs().Name)
			}
		}
	}
	return names, err
}

// enter attaches to a device, and gives a port its contable.
func (s *Scon) enter(l netlink.Link) error {
	index := l.Attrs().Index
	s.mu.Lock()
	_, known := s.hooked[index]
	s.hooked[index] = l.Attrs().Name
	s.mu.Unlock()
	if !known {
		if err := s.hook(l); err != nil {
			s.mu.Lock()
			delete(s.hooked, index)
			s.mu.Unlock()
			if errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrNotExist) {
				return nil // it has gone meanwhile
			}
			return fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
	}
	if l.Attrs().MasterIndex != s.bridge {
		return nil
	}
	table := programContable{Bridge: uint32(s.bridge)}
	err := s.programs.Contables.Update(uint32(index), table, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// leave forgets a port that has gone: its entries and, where its device is gone, the kernel's
// connections of its container, whose address the next one may get.
func (s *Scon) leave(index int) error {
	s.unhook(index)
	addresses, err := s.addresses(uint32(index))
	if err != nil {
		return err
	}
	if err := s.programs.Contables.Delete(uint32(index)); err != nil &&
		!errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if _, err := s.flush(index); err != nil {
		return err
	}
	if _, err := netlink.LinkByIndex(index); err == nil {
		return nil // it is another bridge's, or nobody's
	}
	for _, address := range addresses {
		if err := forget(address); err != nil {
			return fmt.Errorf("connections of %s: %w", address, err)
		}
	}
	return nil
}

// addresses returns the addresses of the container at a port, by its entries, as far as they are of
// the bridge's own networks, but for those that another port has by now: a container may have sent
// from any address.
func (s *Scon) addresses(port uint32) ([]netip.Addr, error) {
	networks, err := netlink.AddrList(&netlink.Device{
		LinkAttrs: netlink.LinkAttrs{Index: s.bridge}}, unix.AF_INET)
	if err != nil {
		return nil, err
	}
	at := map[netip.Addr]bool{} // whether it is that port's alone
	var f programFlow
	var e programConentry
	all := s.programs.Conentries.Iterate()
	for all.Next(&f, &e) {
		inside, device := f.From, f.Device
		if e.Neighbour == 0 {
			inside, device = e.To, e.Device
		}
		address := addr(inside)
		if device != port {
			at[address] = false
		} else if _, known := at[address]; !known {
			at[address] = true
		}
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, err
	}
	var alone []netip.Addr
	for address, is := range at {
		if is && slices.ContainsFunc(networks, func(n netlink.Addr) bool {
			return n.Contains(address.AsSlice())
		}) {
			alone = append(alone, address)
		}
	}
	return alone, nil
}

// flush removes entries that are idle, and all that lead from or to a device, if one is named. It
// walks all of them, so it notes when the next one may be idle.
func (s *Scon) flush(device int) (removed int, err error) {
	what := programFlushing{Idle: jiffies(idle), Device: uint32(device)}
	if _, err = s.programs.Flush.Run(&ebpf.RunOptions{Context: what,
		ContextOut: &what}); err != nil {
		return 0, fmt.Errorf("flush: %w", err)
	}
	s.due = time.Now().Add(idle - time.Duration(what.Now-what.Oldest)*tick())
	return int(what.Removed), nil
}

// generation reads what the programs would read for a packet now.
func (s *Scon) generation() (g programGeneration, err error) {
	if _, err = s.programs.Generations.Run(&ebpf.RunOptions{Context: g,
		ContextOut: &g}); err != nil {
		return g, fmt.Errorf("generation of the rules: %w", err)
	}
	return g, nil
}
