package sim

import (
	"slices"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// What the paper says of its 200 starts at once of guests with 512 MiB.
const (
	paperAtOnce = 200
	paperMemory = 512
	zeroing     = 0.93 // the part of a mapping's time that zeroing takes
)

// Of returns the steps of a start under an arm. "paper-2024,s=0" is the paper's stock software, and
// takes total on average with 200 starts at once, shared as in Table1. The other arms follow from
// it by rules:
//   - an opening takes as long as gives that average if each of 200 waits for those before it.
//     Only with l=bus they wait. With r=1 nothing is left of it, since it is a reset;
//   - mapping memory takes as long as there is memory, and 7 % of that if it is zeroed before, or
//     afterwards;
//   - only with s=0 an image is mapped, and with a=1 nobody waits for the VF's driver;
//   - without a VF there is neither a mapping, nor an opening, nor a driver.
//
// What else a kernel, a VMM or a machine does is not in it: it shows what an ablation looks like,
// and no result.
func Of(a arm.Arm, memoryMiB int, total time.Duration) []Step {
	var steps []Step
	for _, s := range Table1(total) {
		switch s.Stage {
		case timeline.DMARAM:
			left := 1 - zeroing*float64(a.Zeroed)/100
			if a.Memory != fastiovd.Eager {
				left = 1 - zeroing
			}
			s.Takes = time.Duration(float64(s.Takes) * left * float64(memoryMiB) / paperMemory)
		case timeline.DMAImage:
			if a.Root != arm.Region {
				s.Takes = 0
			}
		case timeline.VFIODev:
			// the mean of 1, 2, … 200 openings
			s.Takes = 2 * s.Takes / (paperAtOnce + 1)
			s.Alone = a.Lock == arm.Bus
			if a.Reset {
				s.Takes = 0
			}
		case timeline.VFDriver:
			if a.Async {
				s.Takes = 0
			}
		}
		steps = append(steps, s)
	}
	return slices.DeleteFunc(steps, func(s Step) bool {
		ofVF := slices.Contains([]timeline.Stage{timeline.DMARAM, timeline.DMAImage,
			timeline.VFIODev, timeline.VFDriver}, s.Stage)
		return s.Takes == 0 || !a.ByVFIO() && ofVF
	})
}
