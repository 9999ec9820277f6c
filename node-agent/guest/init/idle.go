package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// An idleness measures for how long nothing ran in the guest, and no disk was waited for, while its
// VF came up: then only the VF was waited for, whatever the program was about to do. It counts from
// begin until it is settled, which is when the first packet is held, the program accepts, or the VF
// is up.
type idleness struct {
	from uptime
	once sync.Once
	idle time.Duration
}

// An uptime is the time since the boot, and how much of it each CPU idled, summed up.
type uptime struct{ since, idle time.Duration }

func readUptime() (u uptime) {
	text, err := os.ReadFile("/proc/uptime")
	if err == nil {
		u, err = parseUptime(string(text))
	}
	if err != nil {
		say("fastiov-init: how long the guest idles is not known: %v", err)
	}
	return u
}

func parseUptime(text string) (uptime, error) {
	var since, idle float64
	_, err := fmt.Sscan(text, &since, &idle)
	second := float64(time.Second)
	return uptime{time.Duration(since * second), time.Duration(idle * second)}, err
}

// idleUntil returns how long all of the CPUs idled at once, at the least.
func (from uptime) idleUntil(to uptime, cpus int) time.Duration {
	elapsed := to.since - from.since
	return max(0, min(to.idle-from.idle-time.Duration(cpus-1)*elapsed, elapsed))
}

func (i *idleness) begin() { i.from = readUptime() }

// settle ends the measuring, and returns what was measured; only the first call counts.
func (i *idleness) settle() time.Duration {
	i.once.Do(func() { i.idle = i.from.idleUntil(readUptime(), runtime.NumCPU()) })
	return i.idle
}
