package main

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A packet is an IP packet as far as the gate looks at it.
type packet struct {
	source, target netip.Addr
	bytes          []byte
}

const header4, header6 = 20, 40 // bytes, without options

// parsePacket takes a whole IPv4 or IPv6 packet.
func parsePacket(b []byte) (p packet, ok bool) {
	if len(b) == 0 {
		return p, false
	}
	p.bytes = b
	switch b[0] >> 4 {
	case 4:
		if len(b) < header4 || int(b[0]&0xf)*4 < header4 || int(b[0]&0xf)*4 > len(b) ||
			int(binary.BigEndian.Uint16(b[2:])) != len(b) {
			return p, false
		}
		p.source = netip.AddrFrom4([4]byte(b[12:]))
		p.target = netip.AddrFrom4([4]byte(b[16:]))
	case 6:
		if len(b) < header6 || int(binary.BigEndian.Uint16(b[4:])) != len(b)-header6 {
			return p, false
		}
		p.source = netip.AddrFrom16([16]byte(b[8:]))
		p.target = netip.AddrFrom16([16]byte(b[24:]))
	default:
		return p, false
	}
	return p, true
}

// unreachable returns the ICMP message to the packet's sender that its target cannot be reached, as
// if from the target: the sender's own address would be none to hear from.
func (p packet) unreachable() []byte {
	const (
		timeToLive     = 64
		icmp           = 8         // bytes of ICMP's own header
		most4, most6   = 576, 1280 // bytes of a message
		unreached4     = 3         // its type in ICMP
		host4          = 1         // its code
		unreached6     = 1         // in ICMPv6
		address6       = 3         // its code
		protocol4      = unix.IPPROTO_ICMP
		protocol6      = unix.IPPROTO_ICMPV6
		length4, check = 2, 10 // offsets in the IPv4 header
	)
	if p.target.Is4() {
		about := p.bytes[:min(len(p.bytes), most4-header4-icmp)]
		m := make([]byte, header4+icmp, most4)
		m[0] = 4<<4 | header4/4
		binary.BigEndian.PutUint16(m[length4:], uint16(header4+icmp+len(about)))
		m[8], m[9] = timeToLive, protocol4
		copy(m[12:], p.target.AsSlice())
		copy(m[16:], p.source.AsSlice())
		binary.BigEndian.PutUint16(m[check:], checksum(0, m[:header4]))
		m[header4], m[header4+1] = unreached4, host4
		m = append(m, about...)
		binary.BigEndian.PutUint16(m[header4+2:], checksum(0, m[header4:]))
		return m
	}
	about := p.bytes[:min(len(p.bytes), most6-header6-icmp)]
	m := make([]byte, header6+icmp, most6)
	m[0] = 6 << 4
	binary.BigEndian.PutUint16(m[4:], uint16(icmp+len(about)))
	m[6], m[7] = protocol6, timeToLive
	copy(m[8:], p.target.AsSlice())
	copy(m[24:], p.source.AsSlice())
	m[header6], m[header6+1] = unreached6, address6
	m = append(m, about...)
	binary.BigEndian.PutUint16(m[header6+2:],
		checksum(uint32(icmp+len(about))+protocol6+sum(m[8:header6]), m[header6:]))
	return m
}

// checksum returns that of the Internet protocols, over bytes and what was summed up before.
func checksum(before uint32, b []byte) uint16 {
	total := before + sum(b)
	for total>>16 != 0 {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

func sum(b []byte) (total uint32) {
	for ; len(b) > 1; b = b[2:] {
		total += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		total += uint32(b[0]) << 8
	}
	return total
}
