package guest

import (
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A clock maps a guest's CLOCK_BOOTTIME to the host's clock. Of all exchanges the quickest counts: the guest read its clock somewhere between
// ping and pong, so taking the middle is wrong by half the round trip at most.
type clock struct {
	zero  time.Time     // host time at the guest's boot time 0
	err   time.Duration // how far zero may be off
	known bool
}

func (c *clock) exchange(ping, pong time.Time, boot int64) {
	half := pong.Sub(ping) / 2
	if c.known && half >= c.err {
		return
	}
	*c = clock{zero: ping.Add(half - time.Duration(boot)), err: half, known: true}
}

func (c *clock) host(boot int64) time.Time { return c.zero.Add(time.Duration(boot)) }

// minBaseline is how far apart two stamps must be to tell the rate of a time-stamp counter by them.
const minBaseline = 5 * time.Millisecond

// firstInstruction is the boot time, zero or negative, at which the guest's time-stamp counter was zero, reckoned from two stamps. Where the
// stamps make no sense (no counter, a guest that lies) it is the boot time 0.
func firstInstruction(a, b wire.Stamp) int64 {
	if b.Boot-a.Boot < int64(minBaseline) || b.TSC <= a.TSC || a.TSC == 0 || a.Boot < 0 {
		return 0
	}
	perNano := float64(b.TSC-a.TSC) / float64(b.Boot-a.Boot)
	return min(0, a.Boot-int64(float64(a.TSC)/perNano))
}
