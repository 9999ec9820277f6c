package vf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// replyOf returns the kernel's reply about a PF with that many VFs. Each VF has the attributes and
// sizes of Linux 6.12's rtnl_fill_vfinfo. A list longer than 16 bits can say is complete, but its
// length is cut off, as in memory.
func replyOf(vfs int, stats bool) []byte {
	list := nl.NewRtAttr(unix.IFLA_VFINFO_LIST, nil)
	for i := range vfs {
		info := list.AddRtAttr(nl.IFLA_VF_INFO, nil)
		add := func(kind, size int, values ...uint32) {
			data := make([]byte, size)
			for n, v := range append([]uint32{uint32(i)}, values...) {
				binary.NativeEndian.PutUint32(data[4*n:], v)
			}
			info.AddRtAttr(kind, data)
		}
		mac := make([]byte, 36)
		binary.NativeEndian.PutUint32(mac, uint32(i))
		copy(mac[4:], []byte{2, 0, 0, 0, 1, byte(i)})
		info.AddRtAttr(nl.IFLA_VF_MAC, mac)
		info.AddRtAttr(13, make([]byte, 32)) // broadcast
		add(nl.IFLA_VF_VLAN, 12, uint32(i%4095))
		add(nl.IFLA_VF_RATE, 12, 0, 100)
		add(nl.IFLA_VF_TX_RATE, 8, 100)
		add(nl.IFLA_VF_SPOOFCHK, 8, 1)
		add(nl.IFLA_VF_LINK_STATE, 8)
		add(nl.IFLA_VF_RSS_QUERY_EN, 8)
		add(nl.IFLA_VF_TRUST, 8)
		add(10, 12) // InfiniBand GUIDs, of those drivers that have them
		add(11, 12)
		info.AddRtAttr(nl.IFLA_VF_VLAN_LIST, nl.NewRtAttr(1, make([]byte, 16)).Serialize())
		if stats {
			all := info.AddRtAttr(nl.IFLA_VF_STATS, nil)
			for kind := range 8 {
				all.AddRtAttr(kind, make([]byte, 8))
			}
		}
	}
	return append(nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), list.Serialize()...)
}

// E810 has 256 VFs. Their settings fit one reply, if it leaves out their statistics.
func TestTheSettingsOf256VFs(t *testing.T) {
	const vfs = 256
	reply := replyOf(vfs, false)
	if len(reply) >= nl.RECEIVE_BUFFER_SIZE {
		t.Fatalf("a reply of %d bytes", len(reply))
	}
	pf, err := linkOf("eth1", [][]byte{reply})
	if err != nil {
		t.Fatal(err)
	}
	all := settingsOf(pf)
	for i := range vfs {
		want := Settings{MAC: fmt.Sprintf("02:00:00:00:01:%02x", i), VLAN: i, MaxRate: 100,
			SpoofCheck: true}
		if all[i] != want {
			t.Fatalf("VF %d: %+v, want %+v", i, all[i], want)
		}
	}
	if pf, err := linkOf("eth1", [][]byte{replyOf(vfs, true)}); err == nil &&
		len(settingsOf(pf)) == vfs {
		t.Error("with statistics they fit too: the question need not leave them out")
	}
}

// The kernel of this machine understands the questions.
func TestTheKernelIsAsked(t *testing.T) {
	for _, filter := range []uint32{0, withVFs | withoutStats} {
		if link, err := ask("lo", filter); err != nil || link.Attrs().Name != "lo" {
			t.Errorf("filter %d: %v, %v", filter, link, err)
		}
	}
	if all, err := (rtnetlink{}).VFs("lo"); err != nil || len(all) != 0 {
		t.Errorf("lo has VFs: %v, %v", all, err)
	}
	if _, err := ask("no-such-netdev", 0); !errors.Is(err, unix.ENODEV) &&
		!errors.As(err, new(netlink.LinkNotFoundError)) {
		t.Error(err)
	}
}
