package ablation

import (
	"fmt"
	"slices"

	"github.com/fastiov/fastiov/bench/plot"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// byFunction returns each function's cells of the highest concurrency that has data, by arm.
func (r *Result) byFunction() (cells []*Cell) {
	first := r.largest()
	for _, of := range first {
		cells = append(cells, of)
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Function != of.Function && c.Arm == of.Arm && c.N == of.N &&
				c.MemoryMiB == of.MemoryMiB && len(c.starts) > 0 {
				cells = append(cells, c)
			}
		}
	}
	return cells
}

func (r *Result) fig15() figure {
	f := figure{File: "fig15", Title: "Figure 15: applications",
		Says: "Average times from the call to the answer, by arm and function. The paper has 12.1" +
			" to 53.5 % less average and 20.3 to 53.7 % less 99th percentile time until Image," +
			" Compression, Scientific and Inference are done.",
		Wants: "--functions hello,image,compression,scientific,inference --arms 'none all'"}
	cells := r.byFunction()
	if len(cells) == len(r.largest()) {
		f.Missing = noData + "it needs more than one function."
		return f
	}
	bars := plot.Bars{Y: "average, s", Parts: []string{"cold start", "the call"},
		Colours: []int{8, 14}}
	t := table{Caption: where(cells[0]), Head: []string{"arm", "function", "average s", "p99 s",
		"of that, average: the call"}}
	for _, c := range cells {
		call := c.Stages[timeline.FirstByte].Mean
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm + ", " + c.Function,
			Values: []float64{(c.EndToEnd.Mean - call) / 1000, call / 1000},
			Note:   seconds(c.EndToEnd.Mean)})
		t.Rows = append(t.Rows, []string{c.Arm, c.Function, seconds(c.EndToEnd.Mean),
			seconds(c.EndToEnd.P99), seconds(call)})
	}
	f.Plots, f.Tables = []drawn{{Plot: bars}}, []table{t}
	return f
}

func (r *Result) network() figure {
	f := figure{File: "network", Title: "Ways to the network",
		Says: "Medians, with the shortest and the longest: from the call to the first byte of the" +
			" answer, and what of that the network took. echo-net answers once it has sent back" +
			" what it fetched. In containers none is a bridge, and netdev a VF.",
		Wants: "--sandbox containerd --arms 'nonet none netdev' --functions hello,echo-net"}
	cells := r.byFunction()
	if !slices.ContainsFunc(cells, func(c *Cell) bool { return c.Function == "echo-net" }) {
		f.Missing = noData + "it needs the function echo-net."
		return f
	}
	stages := []timeline.Stage{timeline.CNI, timeline.VFDriver, timeline.FirstByte}
	bars := plot.Bars{Y: "median, ms", Colours: []int{5, 8, 14, 3},
		Parts: []string{"cni", "5-vf-driver", "first-byte", "others"}}
	t := table{Caption: where(cells[0]), Head: []string{"arm", "function", "end to end ms",
		"cni ms", "5-vf-driver ms", "first-byte ms"}}
	for _, c := range cells {
		row, rest := []string{c.Arm, c.Function, ranged(c.EndToEnd)}, c.EndToEnd.Median
		var values []float64
		for _, stage := range stages {
			values = append(values, c.Stages[stage].Median)
			rest -= c.Stages[stage].Median
			row = append(row, ranged(c.Stages[stage]))
		}
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm + ", " + c.Function,
			Values: append(values, max(rest, 0)), Note: fmt.Sprintf("%.0f", c.EndToEnd.Median)})
		t.Rows = append(t.Rows, row)
	}
	f.Plots, f.Tables = []drawn{{Plot: bars}}, []table{t}
	return f
}

// ranged returns a median with the least and the most, in ms.
func ranged(s Spread) string {
	if s.Count == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f (%.1f to %.1f)", s.Median, s.Min, s.Max)
}
