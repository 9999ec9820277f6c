//go:build scon

package scon

import (
	"math/rand/v2"
	"testing"
	"time"
)

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
	frame := string(f.frame(true, shape{ttl: 64}, rnd))
	for n, pending := range [][2]map[string]int{{{}, {}}, {{}, {frame: 1}}, {{frame: -1}, {}},
		{{string(last): 1}, {frame: 1}}, {{string(last): 1, frame: 1}, {}}} {
		if (&fuzz{pending: pending}).errorsAlone() {
			t.Errorf("difference %d is hidden", n)
		}
	}
}
