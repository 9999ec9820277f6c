package vf

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Settings holds the rules that a PF enforces for one of its VFs, whatever the VF's tenant does.
type Settings struct {
	MAC        string
	VLAN       int    // 0: untagged
	QoS        int    `json:",omitempty"` // priority in the VLAN's tag
	Proto      string `json:",omitempty"` // of the tag: 802.1q, also if empty, or 802.1ad
	Link       string `json:",omitempty"` // LinkAuto, LinkOn or LinkOff; empty: as it is
	MinRate    int    // Mbit/s, 0: none
	MaxRate    int    // Mbit/s, 0: no limit
	SpoofCheck bool
	Trust      bool
}

// The states of a VF's link: as the PF's, or up or down whatever the PF's is.
const (
	LinkAuto = "auto"
	LinkOn   = "enable"
	LinkOff  = "disable"
)

var linkStates = map[string]uint32{LinkAuto: netlink.VF_LINK_STATE_AUTO,
	LinkOn: netlink.VF_LINK_STATE_ENABLE, LinkOff: netlink.VF_LINK_STATE_DISABLE}

// The protocols of a VLAN's tag.
const (
	Proto8021Q  = "802.1q"
	Proto8021AD = "802.1ad"
)

// A Network reads and writes what PFs keep for their VFs. Tests put an emulation here.
type Network interface {
	// VFs returns the settings of all VFs of a PF, by index.
	VFs(netdev string) (map[int]Settings, error)
	// SetVF makes one VF's settings so. A setting that a driver refuses to change must be as wanted
	// already.
	SetVF(netdev string, index int, want Settings) error
	SetUp(netdev string, up bool) error
}

// rtnetlink is the Network of the kernel this program runs on.
type rtnetlink struct{}

// The extra parts that a question for a link asks for. All VFs are in one attribute, whose length
// has 16 bits: with their statistics, 221 VFs fit; without, more than 256.
const (
	withVFs      = nl.RTEXT_FILTER_VF
	withoutStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// ask asks the kernel for a link, and for nothing of its VFs that filter does not ask for.
func ask(netdev string, filter uint32) (netlink.Link, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(filter)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(netdev)))
	replies, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", netdev, err)
	}
	return linkOf(netdev, replies)
}

func linkOf(netdev string, replies [][]byte) (netlink.Link, error) {
	if len(replies) != 1 {
		return nil, fmt.Errorf("%s: the kernel answers with %d links", netdev, len(replies))
	}
	link, err := netlink.LinkDeserialize(nil, replies[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", netdev, err)
	}
	return link, nil
}

func (rtnetlink) VFs(netdev string) (map[int]Settings, error) {
	pf, err := ask(netdev, withVFs|withoutStats)
	if err != nil {
		return nil, err
	}
	return settingsOf(pf), nil
}

func settingsOf(pf netlink.Link) map[int]Settings {
	all := map[int]Settings{}
	for _, v := range pf.Attrs().Vfs {
		s := Settings{MAC: v.Mac.String(), VLAN: v.Vlan, QoS: v.Qos, MinRate: int(v.MinTxRate),
			MaxRate:    int(v.MaxTxRate),
			SpoofCheck: v.Spoofchk, Trust: v.Trust == 1} // a driver without trust reports all ones
		if v.VlanProto == unix.ETH_P_8021AD {
			s.Proto = Proto8021AD
		}
		for name, state := range linkStates {
			if v.LinkState == state && state != netlink.VF_LINK_STATE_AUTO {
				s.Link = name
			}
		}
		all[v.ID] = s
	}
	return all
}

// SetVF sets all without reading first: a reading covers all VFs of the PF, and many are set at
// once. It reads only after a refusal. igb refuses any rate without a link, and some drivers know
// no trust.
func (n rtnetlink) SetVF(netdev string, index int, want Settings) error {
	pf, err := ask(netdev, 0)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(want.MAC)
	if err != nil {
		return err
	}
	steps := []struct {
		name string
		same func(have Settings) bool
		err  error
	}{
		{"MAC " + want.MAC, func(have Settings) bool { return have.MAC == want.MAC },
			netlink.LinkSetVfHardwareAddr(pf, index, mac)},
		{strings.TrimSpace(fmt.Sprintf("VLAN %d %s", want.VLAN, want.Proto)),
			func(have Settings) bool {
				return have.VLAN == want.VLAN && have.QoS == want.QoS &&
					have.tag() == want.tag()
			}, setVLAN(pf, index, want)},
		{fmt.Sprintf("rate %d to %d Mbit/s", want.MinRate, want.MaxRate),
			func(have Settings) bool {
				return have.MinRate == want.MinRate && have.MaxRate == want.MaxRate
			},
			netlink.LinkSetVfRate(pf, index, want.MinRate, want.MaxRate)},
		{fmt.Sprintf("spoof check %t", want.SpoofCheck),
			func(have Settings) bool { return have.SpoofCheck == want.SpoofCheck },
			netlink.LinkSetVfSpoofchk(pf, index, want.SpoofCheck)},
		{fmt.Sprintf("trust %t", want.Trust), func(have Settings) bool {
			return have.Trust == want.Trust
		},
			netlink.LinkSetVfTrust(pf, index, want.Trust)},
		{"link " + want.Link, func(have Settings) bool {
			return want.Link == cmp.Or(have.Link, LinkAuto)
		}, setLink(pf, index, want.Link)},
	}
	var have Settings
	read := false
	for _, step := range steps {
		if step.err == nil {
			continue
		}
		if !read {
			all, err := n.VFs(netdev)
			if err != nil {
				return err
			}
			if have, read = all[index]; !read {
				return fmt.Errorf(
					"%s does not know its VF %d; does its driver (see ethtool -i %s) support VF settings?",
					netdev, index, netdev)
			}
		}
		if !step.same(have) {
			return fmt.Errorf("%s refuses %s for its VF %d: %w", netdev, step.name, index, step.err)
		}
	}
	return nil
}

// tag returns the protocol number of the VLAN's tag.
func (s Settings) tag() int {
	if s.Proto == Proto8021AD {
		return unix.ETH_P_8021AD
	}
	return unix.ETH_P_8021Q
}

// setVLAN says no more than it must: drivers refuse what they do not know.
func setVLAN(pf netlink.Link, index int, want Settings) error {
	switch {
	case want.tag() != unix.ETH_P_8021Q:
		return netlink.LinkSetVfVlanQosProto(pf, index, want.VLAN, want.QoS, want.tag())
	case want.QoS != 0:
		return netlink.LinkSetVfVlanQos(pf, index, want.VLAN, want.QoS)
	}
	return netlink.LinkSetVfVlan(pf, index, want.VLAN)
}

func setLink(pf netlink.Link, index int, state string) error {
	if state == "" {
		return nil
	}
	return netlink.LinkSetVfState(pf, index, linkStates[state])
}

func (rtnetlink) SetUp(netdev string, up bool) error {
	link, err := ask(netdev, 0)
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}
