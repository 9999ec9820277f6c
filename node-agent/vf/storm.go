package vf

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The IOMMU keeps a VF from memory outside its guest, and each access that it refuses costs the
// host an interrupt. The kernel logs some of them and lets the device go on. One refusal is a
// mistake. A storm of them comes from a guest that does it on purpose or from a broken VF. Then the
// sandbox is ended, and the VF rests in quarantine before it is used again.
const (
	// Only logged refusals count. Intel's driver logs about three in five seconds, so this
	// many means that they go on.
	stormCount  = 5
	stormWithin = 10 * time.Second
)

// refusals match what Intel's and AMD's drivers log, each with the device's address. AMD's driver
// names a device that the kernel knows in front of the line, as all messages about a device do, and
// any other one by "device=". A line that says "callbacks suppressed" names none.
var refusals = []*regexp.Regexp{
	regexp.MustCompile(`;DMAR: \[DMA \w+(?: [\w ]+)?\] Request device \[([0-9a-fx:.]+)\]`),
	regexp.MustCompile(
		`;\S+ ([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): AMD-Vi: Event logged \[\w+ domain=`),
	regexp.MustCompile(`AMD-Vi: Event logged \[\w+ device=([0-9a-f:.]+)`),
}

// refusedDevice reads a record of the kernel's log, as in "3,1234,5678,-;DMAR: …". Only the
// kernel's own records count, because a process can write to the log too.
func refusedDevice(record string) (bdf string, ok bool) {
	var priority int
	if _, err := fmt.Sscanf(record, "%d,", &priority); err != nil || priority>>3 != 0 {
		return "", false
	}
	for _, form := range refusals {
		m := form.FindStringSubmatch(record)
		if m == nil {
			continue
		}
		if bdf = strings.ReplaceAll(m[1], "0x", ""); len(bdf) == len("00:00.0") {
			bdf = "0000:" + bdf
		}
		return bdf, true
	}
	return "", false
}

// watchRefusals ends storms, until the channel is closed.
func (p *Pool) watchRefusals(refused <-chan string) {
	for bdf := range refused {
		if p.isStorm(bdf, time.Now()) {
			p.Fault(bdf, afterStorm)
		}
	}
}

const afterStorm = "the IOMMU refused its DMA again and again"

// isStorm counts a refusal and reports whether it makes a storm.
func (p *Pool) isStorm(bdf string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.find(bdf)
	if v == nil {
		return false
	}
	if now.Sub(v.refusedSince) > stormWithin {
		v.refusedSince, v.refusals = now, 0
	}
	v.refusals++
	if v.refusals != stormCount {
		return false
	}
	v.rest = afterStorm
	return true
}
