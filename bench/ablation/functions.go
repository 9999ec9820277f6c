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
	f.LeftOut = r.leftOut(cells)
	if len(cells) == len(r.largest()) {
		f.Missing = noData + "it needs more than one function."
		return f
	}
	t := f.stack(cells, []timeline.Stage{timeline.FirstByte})
	t.Head = []string{"arm", "function", "average s", "p99 s", "of that, average: the call",
		"answered"}
	for _, c := range cells {
		t.Rows = append(t.Rows, []string{c.Arm, c.Function, seconds(c.EndToEnd.Mean),
			seconds(c.EndToEnd.P99), seconds(c.Stages[timeline.FirstByte].Mean),
			c.answered()})
	}
	f.Tables = []table{t}
	return f
}

func (r *Result) network() figure {
	f := figure{File: "network", Title: "Ways to the network",
		Says: "From the call to the first byte of the answer, and what of that the network took:" +
			" averages in the drawing, medians with the shortest and the longest in the table." +
			" echo-net answers once it has sent back what it fetched. In containers none is a" +
			" bridge, and netdev a VF. In a testbed the two leave by different emulated cards.",
		Wants: "--sandbox containerd --arms 'nonet none netdev' --functions hello,echo-net"}
	cells := r.byFunction()
	f.LeftOut = r.leftOut(cells)
	if !slices.ContainsFunc(cells, func(c *Cell) bool { return c.Function == "echo-net" }) {
		f.Missing = noData + "it needs the function echo-net."
		return f
	}
	stages := []timeline.Stage{timeline.CNI, timeline.VFDriver, timeline.FirstByte}
	t := f.stack(cells, stages)
	t.Head = []string{"arm", "function", "end to end ms"}
	for _, stage := range stages {
		t.Head = append(t.Head, string(stage)+" ms")
	}
	t.Head = append(t.Head, "answered")
	for _, c := range cells {
		row := []string{c.Arm, c.Function, ranged(c.EndToEnd)}
		for _, stage := range stages {
			row = append(row, ranged(c.Stages[stage]))
		}
		t.Rows = append(t.Rows, append(row, c.answered()))
	}
	f.Tables = []table{t}
	return f
}

// stack draws each cell's average time as a bar of these stages and all others, and returns the
// table that belongs to it, without a head. Averages add up, and medians do not.
func (f *figure) stack(cells []*Cell, stages []timeline.Stage) table {
	bars := plot.Bars{Y: "average, s", Parts: []string{"others"}, Colours: []int{3}}
	for _, stage := range stages {
		bars.Parts = append(bars.Parts, string(stage))
		bars.Colours = append(bars.Colours, stageColour(stage))
	}
	for _, c := range cells {
		values := []float64{c.EndToEnd.Mean / 1000}
		for _, stage := range stages {
			values = append(values, c.Stages[stage].Mean/1000)
			values[0] -= c.Stages[stage].Mean / 1000
		}
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm + ", " + c.Function, Values: values,
			Note: seconds(c.EndToEnd.Mean)})
	}
	f.Plots = []drawn{{Plot: bars}}
	return table{Caption: where(cells)}
}

// ranged returns a median with the least and the most, in ms.
func ranged(s Spread) string {
	if s.Count == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f (%.1f to %.1f)", s.Median, s.Min, s.Max)
}
