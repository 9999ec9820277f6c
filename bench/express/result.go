package express

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// A Result holds what all rounds came to.
type Result struct {
	Machine string `json:"machine"`
	Runs    int    `json:"runs"`
	Arms    []Arm  `json:"arms"`
	Cells   []Cell `json:"cells"`
}

// A Cell holds all rounds of one load by one arm.
type Cell struct {
	Load      string          `json:"load"`
	Arm       string          `json:"arm"`
	Rounds    int             `json:"rounds"`
	CPUNs     bench.Quartiles `json:"cpu_ns"`     // of a message
	OfNative  bench.Quartiles `json:"of_native"`  // native's CPU time in this one's: 1 is as cheap
	OfBridge  bench.Quartiles `json:"of_bridge"`  // the bridge's in this one's
	SoftirqNs float64         `json:"softirq_ns"` // of a message, over all rounds
	PerSecond float64         `json:"per_second"` // messages, by the clock
	Express   float64         `json:"express"`    // packets for a message
	P50Us     float64         `json:"p50_us,omitempty"`
	P99Us     float64         `json:"p99_us,omitempty"`
}

func resultOf(rounds []Round) *Result {
	r := &Result{}
	type place struct{ load, arm string }
	of := map[place][]Round{}
	runs := map[time.Time]bool{}
	for _, round := range rounds {
		of[place{round.Load, round.Arm}] = append(of[place{round.Load, round.Arm}], round)
		runs[round.Run] = true
		r.Machine = round.On
	}
	r.Runs = len(runs)
	for _, l := range loads() {
		for _, arm := range Arms {
			all := of[place{l.Name, arm.Name}]
			if len(all) == 0 {
				continue
			}
			c := cellOf(all)
			c.OfNative = ratios(of[place{l.Name, Native}], all)
			c.OfBridge = ratios(of[place{l.Name, bridgeOf(arm)}], all)
			r.Cells = append(r.Cells, c)
			if !slices.Contains(r.Arms, arm) {
				r.Arms = append(r.Arms, arm)
			}
		}
	}
	return r
}

// bridgeOf names the bridge under as many rules.
func bridgeOf(arm Arm) string {
	if arm.rules > 0 {
		return "bridge-1000"
	}
	return Bridge
}

func (r Round) cost() float64 { return r.CPUNs / float64(r.Messages) }

func cellOf(rounds []Round) Cell {
	c := Cell{Load: rounds[0].Load, Arm: rounds[0].Arm, Rounds: len(rounds)}
	var cost, rate, p50, p99 []float64
	var messages, softirq, express float64
	for _, r := range rounds {
		cost = append(cost, r.cost())
		rate = append(rate, float64(r.Messages)/r.WallNs*1e9)
		p50, p99 = append(p50, r.P50Ns), append(p99, r.P99Ns)
		messages += float64(r.Messages)
		softirq += r.SoftirqNs
		express += float64(r.Express)
	}
	c.CPUNs, c.PerSecond = bench.QuartilesOf(cost), bench.QuartilesOf(rate).Median
	c.SoftirqNs, c.Express = softirq/messages, express/messages
	c.P50Us, c.P99Us = bench.QuartilesOf(p50).Median/1000, bench.QuartilesOf(p99).Median/1000
	return c
}

// ratios compares each round with the other arm's of the same time.
func ratios(to, rounds []Round) bench.Quartiles {
	var all []float64
	for _, r := range rounds {
		for _, other := range to {
			if r.Run.Equal(other.Run) && r.Round == other.Round {
				all = append(all, other.cost()/r.cost())
			}
		}
	}
	return bench.QuartilesOf(all)
}

func (r *Result) cell(load, arm string) *Cell {
	for n := range r.Cells {
		if c := &r.Cells[n]; c.Load == load && c.Arm == arm {
			return c
		}
	}
	return nil
}

// machine says on what was measured.
func machine() string { return "one of " + bench.Machine() }

// Print prints the result for a person.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%s; runs: %d\n", r.Machine, r.Runs)
	for _, arm := range r.Arms {
		fmt.Fprintf(w, "%s: %s\n", arm.Name, arm.About)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "load\tarm\trounds\tCPU ns\tq1\tq3\tof native\tq1\tq3\tof bridge\tq1\tq3\t"+
		"softirq ns\texpress\tper s\tp50 µs\tp99 µs\t")
	ratio := func(q bench.Quartiles) string {
		if q.Median == 0 {
			return "–\t–\t–"
		}
		return fmt.Sprintf("%.2f\t%.2f\t%.2f", q.Median, q.Q1, q.Q3)
	}
	for _, c := range r.Cells {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.0f\t%.0f\t%.0f\t%s\t%s\t%.0f\t%.2f\t%.0f\t%.1f\t%.1f\t\n",
			c.Load, c.Arm, c.Rounds, c.CPUNs.Median, c.CPUNs.Q1, c.CPUNs.Q3, ratio(c.OfNative),
			ratio(c.OfBridge), c.SoftirqNs, c.Express, c.PerSecond, c.P50Us, c.P99Us)
	}
	t.Flush()
}
