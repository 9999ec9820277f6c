package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// Memory holds how much of a sandbox's memory was allocated at a moment of its start, and how much
// was zeroed since the start began. Waited is the time that its VF waited for bus mastering, until
// all memory that it reaches was zeroed.
type Memory struct {
	ResidentMiB Quantiles `json:"resident_mib"`
	ZeroedMiB   Quantiles `json:"zeroed_mib"`
	WaitedMs    Quantiles `json:"waited_ms"`
}

// weigh computes the quantiles of the memory footprints, for each of timeline.Moments.
func (r *BurstResult) weigh() {
	for _, at := range timeline.Moments {
		var resident, zeroed, waited []float64
		for _, s := range r.Starts {
			for _, f := range s.Memory {
				if f.At == at {
					resident, zeroed = append(resident, float64(f.Resident)/(1<<20)),
						append(zeroed, float64(f.Zeroed)/(1<<20))
					waited = append(waited, float64(f.Waited)/float64(time.Millisecond))
				}
			}
		}
		if len(resident) == 0 {
			continue
		}
		if r.Memory == nil {
			r.Memory = map[timeline.Moment]Memory{}
		}
		r.Memory[at] = Memory{QuantilesOf(resident), QuantilesOf(zeroed), QuantilesOf(waited)}
	}
}

func (r *BurstResult) printMemory(w io.Writer) {
	if r.Memory == nil {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "memory (--fastiov %s)\tresident MiB\tzeroed MiB\twaited ms\t\n", r.FastIOV)
	for _, at := range timeline.Moments {
		if m, seen := r.Memory[at]; seen {
			fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\n", at, m.ResidentMiB.Median, m.ZeroedMiB.Median,
				m.WaitedMs.Median)
		}
	}
	t.Flush()
}
