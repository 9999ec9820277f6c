package scon

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// forget has the kernel forget the connections from and to a container.
func forget(address netip.Addr) error {
	var of []netlink.CustomConntrackFilter
	for _, side := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP,
		netlink.ConntrackReplySrcIP} {
		filter := &netlink.ConntrackFilter{}
		if err := filter.AddIP(side, address.AsSlice()); err != nil {
			return err
		}
		of = append(of, filter)
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, of...)
	return err
}

// tolerate has the kernel go on to tolerate gaps in each TCP connection of now, also where it does
// not in later ones: of those that went express it has not seen the last windows.
func tolerate() error {
	const established = 3 // TCP_CONNTRACK_ESTABLISHED
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	for _, f := range flows {
		tcp, is := f.ProtoInfo.(*netlink.ProtoInfoTCP)
		if !is || tcp.State != established {
			continue
		}
		// It may have ended meanwhile.
		if err := tolerateOne(f.Forward); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func tolerateOne(f netlink.IPTuple) error {
	const (
		flagsOriginal, flagsReply = 4, 5 // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL and following
		beLiberal                 = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL
	)
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW,
		unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	nested := func(kind int) *nl.RtAttr { return nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil) }
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	tuple, ip := nested(nl.CTA_TUPLE_ORIG), nested(nl.CTA_TUPLE_IP)
	proto := nested(nl.CTA_TUPLE_PROTO)
	ip.AddRtAttr(nl.CTA_IP_V4_SRC, f.SrcIP.To4())
	ip.AddRtAttr(nl.CTA_IP_V4_DST, f.DstIP.To4())
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_TCP})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, port(f.SrcPort))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, port(f.DstPort))
	tuple.AddChild(ip)
	tuple.AddChild(proto)
	info, tcp := nested(nl.CTA_PROTOINFO), nested(nl.CTA_PROTOINFO_TCP)
	for _, side := range []int{flagsOriginal, flagsReply} {
		tcp.AddRtAttr(side, []byte{beLiberal, beLiberal}) // the flags, and which of them count
	}
	info.AddChild(tcp)
	request.AddData(tuple)
	request.AddData(info)
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}
