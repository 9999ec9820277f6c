package bench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// summarise computes the starts' quantiles by stage. A start that lacks a stage spent no time in
// it.
func (r *BurstResult) summarise() {
	var endToEnd, coverage []float64
	stages := map[timeline.Stage][]float64{}
	for _, s := range r.Starts {
		r.FastIOV, r.GuestKernel = s.FastIOV, s.Guest // all starts are of one node
		endToEnd = append(endToEnd, s.EndToEnd)
		coverage = append(coverage, s.Coverage)
		for stage := range s.StagesMs {
			stages[stage] = nil
		}
	}
	r.Stages = map[timeline.Stage]Quantiles{}
	for stage := range stages {
		for _, s := range r.Starts {
			stages[stage] = append(stages[stage], s.StagesMs[stage])
		}
		r.Stages[stage] = QuantilesOf(stages[stage])
	}
	r.weigh()
	r.EndToEnd = QuantilesOf(endToEnd)
	r.StageCoverage = QuantilesOf(coverage)
}

// Print shows the result for people.
func (r *BurstResult) Print(w io.Writer) {
	r.printWaterfall(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "stage\tmedian ms\tp90\tp99\tmax\tshare\t\n")
	row := func(name string, q Quantiles, share string) {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t\n", name, q.Median, q.P90,
			q.P99, q.Max, share)
	}
	for _, stage := range timeline.Order {
		if q, seen := r.Stages[stage]; seen {
			row(string(stage), q, fmt.Sprintf("%.0f %%", 100*q.Median/r.EndToEnd.Median))
		}
	}
	row("end to end", r.EndToEnd, "")
	t.Flush()
	fmt.Fprintf(w, "\n%d/%d answered, %d refused for want of room, %d leaked;"+
		" stage coverage %.3f (median), %.3f (lowest); sandbox %s\n", r.Answered, r.Requested,
		r.Refused, r.Leaked, r.StageCoverage.Median, r.StageCoverage.Min, r.Driver)
	r.printMemory(w)
	r.printTold(w)
	for e, n := range r.Errors {
		fmt.Fprintf(w, "%d × %s\n", n, e)
	}
	for _, l := range r.Leaks {
		fmt.Fprintf(w, "leaked: %s\n", l)
	}
}
