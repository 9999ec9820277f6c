//go:build scon

package scon

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

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
		out, express := w.pass(f, true, shape{flags: "FA"})
		if express || len(out) != 1 {
			t.Fatalf("published %v: a FIN went express: %v, and %d came out", published, express,
				len(out))
		}
		if from := net.IP(out[0][14+12 : 14+16]); !from.Equal(hostIP) {
			t.Errorf("published %v: a FIN left with the address %s", published, from)
		}
		w.established(&flow{tcp: true, published: published, port: 20101 + uint16(n)})
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
