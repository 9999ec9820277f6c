package vf

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// Settings are what a PF enforces for one of its VFs, whatever the VF's tenant does.
type Settings struct {
	MAC        string
	VLAN       int // 0: untagged
	MinRate    int // Mbit/s, 0: none
	MaxRate    int // Mbit/s, 0: no limit
	SpoofCheck bool
	Trust      bool
}

// A Network reads and writes what PFs keep for their VFs. Tests put an emulation here.
type Network interface {
	VF(netdev string, index int) (Settings, error)
	// SetVF changes what differs from want, and nothing else.
	SetVF(netdev string, index int, want Settings) error
	SetUp(netdev string, up bool) error
	// SetDummy makes sure that a dummy netdev with that name and MAC exists; with an empty MAC, that none does.
	SetDummy(name, mac string) error
}

// rtnetlink is the Network of the kernel this program runs on.
type rtnetlink struct{}

func (rtnetlink) VF(netdev string, index int) (Settings, error) {
	_, s, err := find(netdev, index)
	return s, err
}

func find(netdev string, index int) (netlink.Link, Settings, error) {
	pf, err := netlink.LinkByName(netdev)
	if err != nil {
		return nil, Settings{}, fmt.Errorf("%s: %w", netdev, err)
	}
	for _, v := range pf.Attrs().Vfs {
		if v.ID == index {
			return pf, Settings{MAC: v.Mac.String(), VLAN: v.Vlan, MinRate: int(v.MinTxRate), MaxRate: int(v.MaxTxRate),
				SpoofCheck: v.Spoofchk, Trust: v.Trust == 1}, nil // a driver without trust reports all ones
		}
	}
	return nil, Settings{}, fmt.Errorf("%s does not know its VF %d; does its driver (see ethtool -i %s) support VF settings?", netdev, index, netdev)
}

func (rtnetlink) SetVF(netdev string, index int, want Settings) error {
	pf, have, err := find(netdev, index)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(want.MAC)
	if err != nil {
		return err
	}
	steps := []struct {
		name string
		same bool
		set  func() error
	}{
		{"MAC " + want.MAC, have.MAC == want.MAC, func() error { return netlink.LinkSetVfHardwareAddr(pf, index, mac) }},
		{fmt.Sprintf("VLAN %d", want.VLAN), have.VLAN == want.VLAN, func() error { return netlink.LinkSetVfVlan(pf, index, want.VLAN) }},
		{fmt.Sprintf("rate %d to %d Mbit/s", want.MinRate, want.MaxRate), have.MinRate == want.MinRate && have.MaxRate == want.MaxRate,
			func() error { return netlink.LinkSetVfRate(pf, index, want.MinRate, want.MaxRate) }},
		{fmt.Sprintf("spoof check %t", want.SpoofCheck), have.SpoofCheck == want.SpoofCheck,
			func() error { return netlink.LinkSetVfSpoofchk(pf, index, want.SpoofCheck) }},
		{fmt.Sprintf("trust %t", want.Trust), have.Trust == want.Trust, func() error { return netlink.LinkSetVfTrust(pf, index, want.Trust) }},
	}
	for _, step := range steps {
		if step.same {
			continue
		}
		if err := step.set(); err != nil {
			return fmt.Errorf("%s refuses %s for its VF %d: %w", netdev, step.name, index, err)
		}
	}
	return nil
}

func (rtnetlink) SetUp(netdev string, up bool) error {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return fmt.Errorf("%s: %w", netdev, err)
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}

func (rtnetlink) SetDummy(name, mac string) error {
	link, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if mac == "" || link != nil && (link.Type() != "dummy" || link.Attrs().HardwareAddr.String() != mac) {
		if link != nil && link.Type() != "dummy" {
			return fmt.Errorf("a netdev %s exists already and is no dummy; rename it", name)
		}
		if link != nil {
			if err := netlink.LinkDel(link); err != nil {
				return fmt.Errorf("delete %s: %w", name, err)
			}
		}
		link = nil
	}
	if mac == "" || link != nil {
		return nil
	}
	address, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: address}}); err != nil {
		return fmt.Errorf("add dummy netdev %s: %w; is the module dummy loaded?", name, err)
	}
	return nil
}
