package scon

import (
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNotOff says that the flow to be turned on again is not off.
var ErrNotOff = ebpf.ErrKeyNotExist

// What the reasons mean to an operator.
var meanings = map[string]string{
	"express": "it goes express",
	"sample":  "it is regular, as one packet each second is: it keeps conntrack and neighbours true",
	"rules": "it is regular: the rules have changed since the last packet, or do not permit the" +
		" express path",
	"routes":     "it is regular: routes have changed since the last packet",
	"connection": "it is regular: conntrack has the connection in another state than before",
	"window":     "it is regular: conntrack tracks windows of TCP",
}

// Why says which path a flow's next packet takes, and why: one line for each device that it is
// known to come in by.
func (v *View) Why(f Flow) (lines []string, err error) {
	entries, err := v.Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Flow == f {
			lines = append(lines, fmt.Sprintf("by device %d: %s", e.By, meanings[e.Next]))
		}
	}
	if len(lines) > 0 {
		return lines, nil
	}
	lines = []string{"it is regular: it has no entry"}
	off, err := v.table(programMapTurnedOff)
	if err != nil {
		return lines, err
	}
	defer off.Close()
	var is uint8
	if off.Lookup(f.key(0), &is) == nil {
		return append(lines, "it has been turned off by `fastiov scon off`"), nil
	}
	refused, err := v.Refused()
	for _, r := range refused {
		lines = append(lines, r.String())
	}
	if f.Protocol == "tcp" && !ToleratesGaps() {
		lines = append(lines, "conntrack tracks windows of TCP; `fastiov scon attach --conntrack`"+
			" lets it tolerate gaps")
	}
	if err != nil {
		return lines, err
	}
	connection, err := connectionOf(f)
	return append(lines, connection), err
}

// connectionOf says what conntrack has of the flow.
func connectionOf(f Flow) (string, error) {
	all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil {
		return "", err
	}
	for _, c := range all {
		for _, side := range []netlink.IPTuple{c.Forward, c.Reverse} {
			protocol := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}
			if protocol[side.Protocol] == f.Protocol &&
				side.SrcIP.String() == f.From.Addr().String() && side.SrcPort == f.From.Port() &&
				side.DstIP.String() == f.To.Addr().String() && side.DstPort == f.To.Port() {
				return "conntrack has it; TCP goes express once it is established and answered;" +
					" what leaves by another device, or has a helper, does not", nil
			}
		}
	}
	return "conntrack has no such connection", nil
}

// ToleratesGaps reports whether conntrack accepts TCP that it does not see whole.
func ToleratesGaps() bool {
	for _, file := range Settings {
		is, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(is)) != "1" {
			return false
		}
	}
	return true
}
