//go:build scon

package scon

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"
)

// behindReset reports whether the difference is one of two that are known behind a reset, of one
// frame of the flow: but one twin has let it through, and SCON's not with the container's address;
// or the one without SCON has let it go with the container's address and the other has translated
// it, for conntrack took it for invalid. The reverse of that is a leak of SCON's.
func (f *fuzz) behindReset() bool {
	var only, server [2]string // by its twin: of either end, and at the server
	frames := 0
	for end, pending := range f.pending {
		for frame, n := range pending {
			if n != 1 && n != -1 || !f.ofSent(frame) {
				return false
			}
			frames++
			only[(1-n)/2] = frame
			if end == 1 {
				server[(1-n)/2] = frame
			}
		}
	}
	if frames == 1 {
		return server[0] == "" || !net.IP(server[0][source:source+4]).Equal(containerIP)
	}
	return frames == 2 && server == only && server[0] != "" && server[1] != "" &&
		f.translated(server[0], server[1])
}

// Where a frame of TCP has its fields, without options of IPv4.
const (
	ipSum, source, ports = 14 + 10, 14 + 12, 14 + 20
	tcpSum, shortest     = 14 + 36, 14 + 40
)

// portsOf returns a frame's ports of TCP.
func portsOf(frame string) (from, to uint16) {
	return binary.BigEndian.Uint16([]byte(frame[ports:])),
		binary.BigEndian.Uint16([]byte(frame[ports+2:]))
}

// ofSent reports whether a frame is of the flow that was sent.
func (f *fuzz) ofSent(frame string) bool {
	if len(frame) < shortest || frame[14] != 0x45 || frame[14+9] != 6 {
		return false
	}
	from, to := portsOf(frame)
	return from == f.sent || to == f.sent || f.natted[f.sent] && from == 7777
}

// translated reports whether the first frame is the second one with the host's address and the
// flow's port there, and that one has the container's. The sum of TCP is right in both, or they
// would not be compared.
func (f *fuzz) translated(frame, raw string) bool {
	if len(frame) < shortest || len(raw) < shortest ||
		!net.IP(frame[source:source+4]).Equal(hostIP) ||
		!net.IP(raw[source:source+4]).Equal(containerIP) {
		return false
	}
	port, _ := portsOf(frame)
	before, to := portsOf(raw)
	published := before == 80 && to == f.sent && port == publicPort
	if !published && (before != f.sent || to != servicePort) { // ofSent asks for that one's port
		return false
	}
	same := func(frame string) string {
		return frame[:ipSum] + frame[source+4:ports] + frame[ports+2:tcpSum] + frame[tcpSum+2:]
	}
	return same(frame) == same(raw)
}

// Each difference that looks like a known one, and is not, is reported.
func TestOnlyWhatAResetExplainsIsKnown(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, published := range []bool{false, true} {
		flow := &flow{tcp: true, published: published, port: 30001}
		raw := flow.frame(true, shape{ttl: 64, size: 10, seqOff: 1}, rnd)
		with := func(port uint16, size int) string { // the same, translated
			frame := append([]byte(nil), raw[:size]...)
			copy(frame[source:], hostIP.To4())
			binary.BigEndian.PutUint16(frame[ports:], port)
			return string(frame)
		}
		port, wrong := flow.port, uint16(30002)
		if published {
			port = publicPort
		}
		right, leak := with(port, len(raw)), string(raw)
		flow.port = wrong
		other := string(flow.frame(true, shape{ttl: 64, size: 10}, rnd))
		inward := string(flow.frame(false, shape{ttl: 64, size: 10}, rnd))
		flow.port = 30001
		mine := string(flow.frame(false, shape{ttl: 64, size: 10}, rnd))
		type difference [2]map[string]int
		for n, d := range []struct {
			pending difference
			known   bool
		}{
			{difference{{}, {right: 1}}, true},
			{difference{{}, {right: -1}}, true},
			{difference{{}, {leak: -1}}, true},
			{difference{{mine: 1}, {}}, true},
			{difference{{mine: -1}, {}}, true},
			{difference{{}, {right: 1, leak: -1}}, true},
			{difference{{}, {}}, false},
			{difference{{}, {leak: 1}}, false},
			{difference{{}, {leak: 1, right: -1}}, false},
			{difference{{}, {other: -1}}, false},
			{difference{{inward: 1}, {}}, false},
			{difference{{}, {right: 2}}, false},
			{difference{{mine: 1}, {leak: -1}}, false},
			{difference{{}, {with(wrong, len(raw)): 1, leak: -1}}, false},
			{difference{{}, {with(7777, len(raw)): 1, leak: -1}}, false},
			{difference{{}, {with(port, 40): 1, leak: -1}}, false},
			{difference{{}, {with(port, 40): 1}}, false},
			{difference{{}, {with(port, len(raw)-1): 1, leak: -1}}, false},
		} {
			f := &fuzz{sent: 30001, pending: d.pending}
			if f.behindReset() != d.known {
				t.Errorf("published %v: difference %d: known %v", published, n, !d.known)
			}
		}
		f := &fuzz{sent: 30001, natted: map[uint16]bool{30001: true},
			pending: difference{{}, {with(7777, len(raw)): 1, leak: -1}}}
		if f.behindReset() == published {
			t.Errorf("published %v: with a change's port it is known: %v", published, published)
		}
	}
}

// Where conntrack has missed an acknowledgement, a RST that ends the other twin's connection does
// not end this one's. A SYN is then another connection there, and what follows leaves by the
// container's address, as it does without an express path at all. The comparison knows that, and
// reports the same with the twins in each other's place.
func TestAResetThatOnlyTheOtherHostTakes(t *testing.T) {
	f := newFuzz(t, 1)
	found := []string{}
	f.differs = func(what string) { found = append(found, what) }
	flow := &flow{tcp: true, port: 30001}
	f.sent = flow.port
	send := func(outward bool, s shape) {
		t.Helper()
		f.id++
		s.ttl, s.id = 64, f.id
		end := 1
		if outward {
			end = 0
		}
		frame := flow.frame(outward, s, f.rnd)
		for i := range f.twins {
			f.taps[i][end].send(t, frame)
		}
		f.compare(func() string { return fmt.Sprintf("%s, outward %v", s.flags, outward) })
	}
	send(true, shape{flags: "S"})
	send(false, shape{flags: "SA"})
	send(true, shape{flags: "A"})
	until := time.Now().Add(20 * time.Second)
	for n := 0; ; { // both of a pair went express
		before := f.counts()["express"]
		send(true, shape{size: 100})
		send(false, shape{size: 100})
		if f.counts()["express"] != before+2 {
			n = 0
		} else if n++; n == 2 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("too little goes express: %v", f.counts())
		}
	}
	send(true, shape{flags: "R"})
	send(true, shape{flags: "S"})
	if len(found) > 0 {
		t.Fatalf("differs before: %s", found)
	}
	f.reset = true
	send(true, shape{size: 10})
	if f.known != 1 || len(found) > 0 {
		t.Errorf("%d known differences, and %s", f.known, found)
	}
	f.reset = false
	send(true, shape{size: 20})
	f.reset = true
	f.twins[0], f.twins[1], f.taps[0], f.taps[1] = f.twins[1], f.twins[0], f.taps[1], f.taps[0]
	send(true, shape{size: 30})
	f.twins[0], f.twins[1], f.taps[0], f.taps[1] = f.twins[1], f.twins[0], f.taps[1], f.taps[0]
	if f.known != 1 || len(found) != 2 {
		t.Errorf("%d known differences, and %d that are reported, want 1 and 2: %s", f.known,
			len(found), found)
	}
	for n, by := range []string{"without", "with"} {
		if n < len(found) && !strings.Contains(found[n], "only "+by+" SCON: 10.9.0.2>") {
			t.Errorf("the frame with the container's address is not reported as %s SCON's: %s",
				by, found[n])
		}
	}
}

// Behind a SYN that it ignores, conntrack takes any RST for the end until it has seen another
// packet, so the next one has to be regular. Else the RST would end the connection, a SYN behind
// that would be another one, and what the first one sends on would leave without a translation.
func TestAnIgnoredSYNHasNoResetEndTheConnection(t *testing.T) {
	w := wire(t)
	for n, published := range []bool{false, true} {
		f := w.established(&flow{tcp: true, published: published, port: 20001 + uint16(n)})
		if out, express := w.pass(f, !published, shape{flags: "S"}); express || len(out) != 1 {
			t.Fatalf("published %v: a SYN went express: %v, and %d came out", published, express,
				len(out))
		}
		if _, express := w.pass(f, !published, shape{size: 10}); express {
			t.Errorf("published %v: what follows the SYN went express", published)
		}
		w.pass(f, published, shape{size: 10})
		w.pass(f, !published, shape{flags: "R", seqOff: 1 << 30})
		w.pass(f, !published, shape{flags: "S"})
		w.translates(f)
		w.established(&flow{tcp: true, published: published, port: 20101 + uint16(n)})
	}
}

// translates checks that a FIN outward leaves by the regular path, with the host's address.
func (w *wired) translates(f *flow) {
	w.t.Helper()
	out, express := w.pass(f, true, shape{flags: "FA"})
	if express || len(out) != 1 {
		w.t.Fatalf("published %v: a FIN went express: %v, and %d came out", f.published, express,
			len(out))
	}
	if from := net.IP(out[0][14+12 : 14+16]); !from.Equal(hostIP) {
		w.t.Errorf("published %v: a FIN left with the address %s", f.published, from)
	}
}

// What conntrack takes for invalid leaves by the container's address where rules let it, and a rule
// that keeps it in leaves the express path on.
func TestInvalidIsKeptInByARule(t *testing.T) {
	w := wire(t)
	stray := &flow{tcp: true, port: 20001}
	out, express := w.pass(stray, true, shape{flags: "FA"})
	if express || len(out) != 1 || !net.IP(out[0][14+12:14+16]).Equal(containerIP) {
		t.Errorf("a FIN of no connection went express: %v, %x came out", express, out)
	}
	w.host.run(t, "iptables -I FORWARD -i br0 -m conntrack --ctstate INVALID -j DROP")
	w.permitted()
	w.refuse(stray, true, shape{flags: "FA"})
	w.established(&flow{tcp: true, port: 20002})
}
