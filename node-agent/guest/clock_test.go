package guest

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// Whatever the delays of ping and pong and however far apart the clocks, the mapping is off by no more than it says.
func TestClockErrorIsABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Now()
		skew := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "guest's boot time at start"))
		delay := rapid.Int64Range(0, int64(time.Second))
		var c clock
		best := time.Duration(math.MaxInt64)
		at := start
		for range rapid.IntRange(1, 10).Draw(t, "exchanges") {
			there, back := time.Duration(delay.Draw(t, "there")), time.Duration(delay.Draw(t, "back"))
			read := at.Add(there)
			c.exchange(at, read.Add(back), int64(read.Sub(start)+skew))
			at = read.Add(back)
			best = min(best, (there+back)/2)
		}
		off := c.host(int64(skew)).Sub(start).Abs()
		if off > c.err+1 {
			t.Fatalf("the mapping is off by %v and says ± %v", off, c.err)
		}
		if c.err != best {
			t.Fatalf("the error is %v; the quickest exchange allows %v", c.err, best)
		}
	})
}

func TestFirstInstruction(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, c := range []struct {
		name string
		a, b wire.Stamp
		want int64
	}{
		{"firmware took 300 ms, 2 GHz", wire.Stamp{Boot: 700 * ms, TSC: 2_000_000_000}, wire.Stamp{Boot: 1700 * ms, TSC: 4_000_000_000}, -300 * ms},
		{"the counter started with the clock", wire.Stamp{Boot: 100 * ms, TSC: 100_000_000}, wire.Stamp{Boot: 200 * ms, TSC: 200_000_000}, 0},
		{"the counter started after the clock", wire.Stamp{Boot: 100 * ms, TSC: 10}, wire.Stamp{Boot: 200 * ms, TSC: 100_000_010}, 0},
		{"no counter", wire.Stamp{Boot: 100 * ms}, wire.Stamp{Boot: 200 * ms}, 0},
		{"a counter that stands", wire.Stamp{Boot: 100 * ms, TSC: 5}, wire.Stamp{Boot: 200 * ms, TSC: 5}, 0},
		{"too close to tell", wire.Stamp{Boot: 100 * ms, TSC: 1 << 40}, wire.Stamp{Boot: 101 * ms, TSC: 1<<40 + 1}, 0},
		{"a boot time below zero", wire.Stamp{Boot: math.MinInt64, TSC: 1}, wire.Stamp{Boot: math.MaxInt64, TSC: 2}, 0},
	} {
		if got := firstInstruction(c.a, c.b); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, time.Duration(got), time.Duration(c.want))
		}
	}
}

func TestThrottle(t *testing.T) {
	start := time.Now()
	var r throttled
	if wait := r.charge(start, hearBurst); wait > 0 {
		t.Errorf("a burst waits %v", wait)
	}
	if wait := r.charge(start, hearRate/2); wait != time.Second/2 {
		t.Errorf("half a second's bytes over the burst wait %v", wait)
	}
	if wait := r.charge(start.Add(time.Minute), hearBurst); wait > 0 {
		t.Errorf("a burst after a pause waits %v", wait)
	}
}
