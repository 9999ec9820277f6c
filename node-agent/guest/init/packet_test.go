package main

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// A SYN each, of IPv4 and of IPv6.
var syns = []string{
	"450000341c4640004006b1eec6120002c61200019c4e1b580000000100000000a002faf0fe3000000204" +
		"05b40402080a00000001",
	"6000000000140640fd000000000000000000000000000002fd0000000000000000000000000000019c4e" +
		"1b58000000010000000050020000abcd0000",
}

func TestParsePacket(t *testing.T) {
	for i, want := range []packet{
		{source: netip.MustParseAddr("198.18.0.2"), target: netip.MustParseAddr("198.18.0.1")},
		{source: netip.MustParseAddr("fd00::2"), target: netip.MustParseAddr("fd00::1")},
	} {
		b, err := hex.DecodeString(syns[i])
		if err != nil {
			t.Fatal(err)
		}
		p, ok := parsePacket(b)
		if !ok || p.source != want.source || p.target != want.target || !bytes.Equal(p.bytes, b) {
			t.Errorf("%s: %v, %v", syns[i], p, ok)
		}
		for cut := range b {
			if _, ok := parsePacket(b[:cut]); ok {
				t.Errorf("the first %d of %d bytes are taken for a packet", cut, len(b))
			}
		}
	}
}

// FuzzPacket: whatever is taken for a packet has a message about it that others can read.
func FuzzPacket(f *testing.F) {
	for _, syn := range syns {
		b, _ := hex.DecodeString(syn)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parsePacket(b)
		if !ok {
			return
		}
		m := p.unreachable()
		back, ok := parsePacket(m)
		if !ok || back.source != p.target || back.target != p.source {
			t.Fatalf("%x is from %v to %v", m, back.source, back.target)
		}
		protocol, rest, most := ipv4.ICMPTypeDestinationUnreachable.Protocol(), m[header4:], 576
		if checksum(0, m[:header4]) != 0 && p.target.Is4() {
			t.Errorf("%x: a wrong checksum of the header", m)
		}
		before := uint32(0)
		if p.target.Is6() {
			protocol, rest, most = ipv6.ICMPTypeDestinationUnreachable.Protocol(), m[header6:], 1280
			before = uint32(len(rest)) + uint32(protocol) + sum(m[8:header6])
		}
		if checksum(before, rest) != 0 || len(m) > most {
			t.Errorf("%x: a wrong checksum, or more than %d bytes", m, most)
		}
		said, err := icmp.ParseMessage(protocol, rest)
		if err != nil {
			t.Fatal(err)
		}
		about, ok := said.Body.(*icmp.DstUnreach)
		if !ok || !bytes.HasPrefix(b, about.Data[:min(len(about.Data), len(b))]) {
			t.Errorf("%x says %+v", m, said)
		}
	})
}
