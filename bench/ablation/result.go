package ablation

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A Result sums up the rounds of an ablation.
type Result struct {
	Setting
	Kernel string `json:"kernel"`
	Days   string `json:"days"` // over which the rounds go
	Cells  []Cell `json:"cells"`

	rounds []*Round
}

// A Cell sums up the rounds of one arm and function at one concurrency and memory. Times are in
// milliseconds.
type Cell struct {
	Arm       string                    `json:"arm"`
	Function  string                    `json:"function"`
	N         int                       `json:"n"`
	MemoryMiB int                       `json:"memory_mib"`
	Rounds    int                       `json:"rounds"`
	Requested int                       `json:"requested"`
	Answered  int                       `json:"answered"`
	Leaked    int                       `json:"leaked"`
	EndToEnd  Spread                    `json:"end_to_end_ms"`
	Critical  Spread                    `json:"critical_ms"`  // without the guest's CPU time
	GuestCPU  Spread                    `json:"guest_cpu_ms"` // that time
	VFRelated Spread                    `json:"vf_related_ms"`
	Stages    map[timeline.Stage]Spread `json:"stages_ms"`
	Counts    map[Count]Spread          `json:"counts"` // for each start
	Errors    map[string]int            `json:"errors,omitempty"`

	starts []Start
}

// A Spread is the mean and the quantiles of figures.
type Spread struct {
	Mean float64 `json:"mean"`
	bench.Quantiles
}

func spreadOf(values []float64) Spread { return Spread{mean(values), bench.QuantilesOf(values)} }

// resultOf sums up the rounds of these orders.
func resultOf(rounds []*Round, orders []Order) *Result {
	r := &Result{}
	for _, round := range rounds {
		if slices.Contains(orders, round.Order) {
			r.rounds = append(r.rounds, round)
		}
	}
	for _, order := range orders { // in the order in which arms were asked for
		if order.Number == 1 {
			r.Cells = append(r.Cells, cellOf(order, r.rounds))
		}
	}
	if len(r.rounds) > 0 {
		r.Setting, r.Kernel = r.rounds[0].Setting, r.rounds[0].Kernel
		r.Days = daysOf(r.rounds)
	}
	return r
}

// daysOf says on which days the runs of the rounds began. What else the machine did affects all
// arms alike only within a run.
func daysOf(rounds []*Round) string {
	var days []string
	for _, round := range rounds {
		days = append(days, round.Run.Format(time.DateOnly))
	}
	if first, last := slices.Min(days), slices.Max(days); first != last {
		return "from " + first + " to " + last + ": arms are compared across runs"
	}
	return "on " + days[0]
}

func cellOf(order Order, rounds []*Round) Cell {
	c := Cell{Arm: order.Arm, Function: order.Function, N: order.N, MemoryMiB: order.MemoryMiB,
		Stages: map[timeline.Stage]Spread{}, Counts: map[Count]Spread{}, Errors: map[string]int{}}
	counts := map[Count][]float64{}
	for _, r := range rounds {
		if order.Number = r.Number; order != r.Order {
			continue
		}
		c.Rounds++
		c.Requested, c.Answered, c.Leaked = c.Requested+r.Requested, c.Answered+r.Answered,
			c.Leaked+r.Leaked
		c.starts = append(c.starts, r.Starts...)
		for count, n := range r.Counts {
			if r.Answered > 0 {
				counts[count] = append(counts[count], n/float64(r.Answered))
			}
		}
		for e, n := range r.Errors {
			c.Errors[e] += n
		}
	}
	of := func(figure func(Start) float64) Spread {
		var values []float64
		for _, s := range c.starts {
			values = append(values, figure(s))
		}
		return spreadOf(values)
	}
	c.EndToEnd, c.Critical = of(func(s Start) float64 { return s.EndToEnd }), of(Start.Critical)
	c.GuestCPU, c.VFRelated = of(func(s Start) float64 { return s.GuestCPU }), of(Start.VFRelated)
	for _, stage := range timeline.Order {
		spread := of(func(s Start) float64 { return s.Stages[stage] })
		if spread.Max > 0 {
			c.Stages[stage] = spread
		}
	}
	for count, values := range counts {
		c.Counts[count] = spreadOf(values)
	}
	return c
}

// cell returns the cell of an arm with the first function, or nil.
func (r *Result) cell(arm string, n, memory int) *Cell {
	return r.cellFor(r.function(), arm, n, memory)
}

func (r *Result) cellFor(function, arm string, n, memory int) *Cell {
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Arm == arm && c.Function == function && c.N == n && c.MemoryMiB == memory &&
			len(c.starts) > 0 {
			return c
		}
	}
	return nil
}

// function returns the first function.
func (r *Result) function() string {
	if len(r.Cells) == 0 {
		return ""
	}
	return r.Cells[0].Function
}

// Whole reports whether all calls were answered and nothing is left.
func (r *Result) Whole() bool {
	return !slices.ContainsFunc(r.Cells, func(c Cell) bool {
		return c.Answered < c.Requested || c.Leaked > 0
	})
}

// Print shows the result for people.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%v, kernel %s, %s\n", r.Setting, r.Kernel, r.Days)
	fmt.Fprintln(w, "medians; times in ms, counts for each start")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "arm\tfunction\tn\tMiB\trounds\tanswered\t",
		"end to end\tp99\tcritical path\tp99\tguest CPU\t")
	for _, count := range Counts {
		fmt.Fprintf(t, "%s\t", count)
	}
	fmt.Fprintln(t)
	for _, c := range r.Cells {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d/%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t", c.Arm,
			c.Function, c.N, c.MemoryMiB, c.Rounds, c.Answered, c.Requested,
			c.EndToEnd.Median, c.EndToEnd.P99, c.Critical.Median, c.Critical.P99, c.GuestCPU.Median)
		for _, count := range Counts {
			if spread, counted := c.Counts[count]; counted {
				fmt.Fprintf(t, "%.1f\t", spread.Median)
			} else {
				fmt.Fprint(t, "–\t")
			}
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(w, "\nstages, median ms (each instant counts for the innermost stage)")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var stages []timeline.Stage
	fmt.Fprint(t, "arm\tfunction\tn\tMiB\t")
	for _, stage := range timeline.Order {
		if slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Stages[stage].Count > 0 }) {
			stages = append(stages, stage)
			fmt.Fprintf(t, "%s\t", stage)
		}
	}
	fmt.Fprintln(t)
	for _, c := range r.Cells {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t", c.Arm, c.Function, c.N, c.MemoryMiB)
		for _, stage := range stages {
			fmt.Fprintf(t, "%.1f\t", c.Stages[stage].Median)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	for _, c := range r.Cells {
		for e, n := range c.Errors {
			fmt.Fprintf(w, "%s, %s, %d at once: %d × %s\n", c.Arm, c.Function, c.N, n, e)
		}
	}
}
