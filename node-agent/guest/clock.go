package guest

import "time"

// A clock maps a guest's CLOCK_BOOTTIME to the host's clock. The quickest of all exchanges counts:
// the guest read its clock somewhere between ping and pong, so taking the middle is wrong by half
// the round trip at most.
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
