package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// Told is a stage of a simulated start: what it was told to take, and how far off that is what the records say. Within: the median is off by
// no more than 5 % or 2 ms, whichever is more. The worst is news of the machine: of a timer that fired late because others had the CPU.
type Told struct {
	Ms        float64 `json:"told_ms"`
	MedianOff float64 `json:"median_off_ms"`
	WorstOff  float64 `json:"worst_off_ms"`
	Within    bool    `json:"within"`
}

// holdAgainst compares what was measured with what sim was told.
func (r *BurstResult) holdAgainst(steps []sim.Step) {
	for _, step := range steps {
		told := Told{Ms: float64(step.Takes) / float64(time.Millisecond)}
		var off []float64
		for _, s := range r.Starts {
			off = append(off, s.StagesMs[step.Stage]-told.Ms)
		}
		if len(off) == 0 {
			continue
		}
		slices.SortFunc(off, func(a, b float64) int { return int(math.Copysign(1, math.Abs(a)-math.Abs(b))) })
		told.WorstOff = off[len(off)-1]
		told.MedianOff = QuantilesOf(off).Median
		told.Within = math.Abs(told.MedianOff) <= max(0.05*told.Ms, 2)
		if r.Told == nil {
			r.Told = map[timeline.Stage]Told{}
		}
		r.Told[step.Stage] = told
	}
}

// AsTold tells whether sim did what it was told, as far as it was told anything.
func (r *BurstResult) AsTold() bool {
	for _, t := range r.Told {
		if !t.Within {
			return false
		}
	}
	return true
}

func (r *BurstResult) printTold(w io.Writer) {
	for _, stage := range timeline.Order {
		if t, is := r.Told[stage]; is {
			verdict := "as told"
			if !t.Within {
				verdict = "NOT as told"
			}
			fmt.Fprintf(w, "%s: %s, sim was told %.1f ms; off by %+.1f (median), %+.1f (worst)\n", stage, verdict, t.Ms, t.MedianOff, t.WorstOff)
		}
	}
}
