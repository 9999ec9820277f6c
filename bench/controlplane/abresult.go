package controlplane

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// An ABResult holds the same comparison for each load.
type ABResult struct {
	CPUs         int       `json:"cpus"` // shared by servers and load
	Base         string    `json:"base"`
	Head         string    `json:"head"`
	ControlPlane *Compared `json:"control_plane"` // warm calls of one action
	Burst        *Compared `json:"burst"`         // 200 cold starts at once, over sim without costs
}

// Compared holds the result of one load. Ratios are head to base; above 1 the head does more work.
type Compared struct {
	Pairs        int    `json:"pairs"`
	Settled      bool   `json:"settled"`        // by enough pairs, both intervals to ± 1.5 %
	PerSecond    Ratio  `json:"per_second"`     // calls
	PerCPUSecond Ratio  `json:"per_cpu_second"` // calls per second of the server's CPU time
	Base         Counts `json:"base"`
	Head         Counts `json:"head"`
	failures
}

// Counts of a server do not depend on the noise of the machine.
type Counts struct {
	ColdStarts  float64 `json:"cold_starts"` // per call
	Allocations float64 `json:"allocations"` // per call
	Idle        int     `json:"descriptors_idle"`
	After       int     `json:"descriptors_after"` // after the load's connections were closed
	ChildFaults int     `json:"child_page_faults"` // 0: it started no process
	ResidentMiB float64 `json:"resident_mib"`
}

// Failures counts the calls whose status was not the expected one.
func (r *ABResult) Failures() int { return r.ControlPlane.Failed + r.Burst.Failed }

// Print shows the result for people: ratios of head to base with their 95 % intervals.
func (r *ABResult) Print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\tbase %.12s\thead %s\thead to base\n", r.Base, r.Head)
	for _, b := range []struct {
		name string
		of   *Compared
	}{{"warm calls", r.ControlPlane}, {fmt.Sprintf("cold starts, %d at once", atOnce), r.Burst}} {
		c := b.of
		settled := ""
		if !c.Settled {
			settled = ", too few or wider than ± 1.5 %: give it more time by --within"
		}
		fmt.Fprintf(t, "%s\t\t\t%d pairs%s\n", b.name, c.Pairs, settled)
		ratio := func(what string, r Ratio) {
			fmt.Fprintf(t, "  %s\t%.0f\t%.0f\t%v\n", what, r.Base, r.Head, r)
		}
		ratio("per second", c.PerSecond)
		ratio("per second of its CPU", c.PerCPUSecond)
		count := func(what string, of func(Counts) float64) {
			fmt.Fprintf(t, "  %s\t%.4g\t%.4g\t\n", what, of(c.Base), of(c.Head))
		}
		count("cold starts of a call", func(c Counts) float64 { return c.ColdStarts })
		count("allocations of a call", func(c Counts) float64 { return c.Allocations })
		count("descriptors, idle", func(c Counts) float64 { return float64(c.Idle) })
		count("descriptors, after", func(c Counts) float64 { return float64(c.After) })
		count("page faults of child processes",
			func(c Counts) float64 { return float64(c.ChildFaults) })
		count("MiB resident", func(c Counts) float64 { return c.ResidentMiB })
	}
	t.Flush()
	fmt.Fprintf(w, "%d CPUs, shared with the load; medians; 95 %% intervals; %d calls failed\n",
		r.CPUs, r.Failures())
}
