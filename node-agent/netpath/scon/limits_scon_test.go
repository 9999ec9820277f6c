//go:build scon

package scon

import (
	"math/rand/v2"
	"testing"
	"time"
)

// prohibits reports whether a route prohibits packets.
func (f *fuzz) prohibits() bool { return f.undo["prohibit"] != "" }

// errorsAlone reports whether the twins differ by nothing but that one of them says that a route
// prohibits the packet. For each peer the kernel says so once a second and five times at once, by
// its clock: the twins' may fall apart, and nobody can turn that off in a network namespace.
func (f *fuzz) errorsAlone() bool {
	const protocol, kind, code, icmp, unreachable, prohibited = 14 + 9, 14 + 20, 14 + 21, 1, 3, 13
	for frame, n := range f.pending[0] {
		return len(f.pending[0]) == 1 && len(f.pending[1]) == 0 && (n == 1 || n == -1) &&
			len(frame) > code && frame[protocol] == icmp && frame[kind] == unreachable &&
			frame[code] == prohibited
	}
	return false
}

// A host without an express path, too, does not say for each packet that a route prohibits it: see
// errorsAlone. Of what else differs, that hides nothing.
func TestErrorsByRoutesAreLimited(t *testing.T) {
	w := build(t, place{})
	w.host.run(t, "ip route add prohibit 198.18.0.1")
	t.Cleanup(func() { w.host.run(t, "ip route del prohibit 198.18.0.1") })
	ends := [2]*tap{w.container.tap(t, "eth0"), w.server.tap(t, "wire")}
	f := &flow{port: 20001}
	rnd := rand.New(rand.NewPCG(1, 2))
	const frames = 50
	var last []byte
	heard := 0
	for n := range frames {
		ends[0].send(t, f.frame(true, shape{ttl: 64, size: 10, id: uint16(n)}, rnd))
		for _, frame := range ends[0].await(t, 20*time.Millisecond) {
			last = frame
			heard++
		}
	}
	if heard == 0 || heard == frames || len(ends[1].heard(t)) > 0 {
		t.Fatalf("%d of %d frames were answered by an error", heard, frames)
	}
	if !(&fuzz{pending: [2]map[string]int{{string(last): 1}, {}}}).errorsAlone() {
		t.Errorf("%s is not known", describe(last))
	}
	if !(&fuzz{pending: [2]map[string]int{{string(last): -1}, {}}}).errorsAlone() {
		t.Errorf("of the other host, %s is not known", describe(last))
	}
	frame := string(f.frame(true, shape{ttl: 64}, rnd))
	other := string(last[:len(last)-1]) + string(last[len(last)-1]^1) // quotes another packet
	for n, pending := range [][2]map[string]int{{{}, {}}, {{}, {frame: 1}}, {{frame: -1}, {}},
		{{string(last): 1}, {frame: 1}}, {{string(last): 1, frame: 1}, {}},
		{{string(last): 1, other: -1}, {}}, {{string(last): 1, other: 1}, {}},
		{{string(last): 2}, {}}, {{string(last[:30]): 1}, {}}} {
		if (&fuzz{pending: pending}).errorsAlone() {
			t.Errorf("difference %d is hidden", n)
		}
	}
}
