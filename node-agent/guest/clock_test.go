package guest

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the delays of ping and pong and however far apart the clocks, the mapping is off by no
// more than it says.
func TestClockErrorIsABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Now()
		skew := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t,
			"guest's boot time at start"))
		delay := rapid.Int64Range(0, int64(time.Second))
		var c clock
		best := time.Duration(math.MaxInt64)
		at := start
		for range rapid.IntRange(1, 10).Draw(t, "exchanges") {
			there, back := time.Duration(delay.Draw(t, "there")),
				time.Duration(delay.Draw(t, "back"))
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
