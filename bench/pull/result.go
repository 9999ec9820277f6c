package pull

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fastiov/fastiov/bench"
)

// A Result holds what all rounds came to.
type Result struct {
	Machine string  `json:"machine"`
	Images  []Image `json:"images"`
	Arms    []Arm   `json:"arms"`
	Cells   []Cell  `json:"cells"`
}

// A Cell holds the pulls of one image by one arm under equal conditions. Figures are medians.
type Cell struct {
	Image     string             `json:"image"`
	Mbits     int                `json:"mbits"`
	CPUs      int                `json:"cpus"`
	Arm       string             `json:"arm"`
	Ms        bench.Quantiles    `json:"ms"`
	SyncedMs  float64            `json:"synced_ms"` // until all was on the disk
	Inflaters []string           `json:"inflaters,omitempty"`
	StagesMs  map[string]float64 `json:"stages_ms,omitempty"`
	CPUNs     float64            `json:"cpu_ns_per_byte"`        // of the archives
	Kept      float64            `json:"kept_bytes_per_byte"`    // of the archives
	Written   float64            `json:"written_bytes_per_byte"` // of the archives
	MemoryMiB float64            `json:"memory_mib"`
	Times     bench.Quantiles    `json:"times"`             // the first arm's time, by rounds
	CPUTimes  float64            `json:"cpu_times"`         // its CPU time, in the first arm's
	OfWire    float64            `json:"of_wire,omitempty"` // in times that the wire takes
}

func (c Cell) place() Order { return Order{Image: c.Image, Mbits: c.Mbits, CPUs: c.CPUs} }

// result makes cells of all rounds that were kept, those of other commands included.
func (b *Bench) result() *Result {
	r := &Result{Machine: machine(), Images: slices.Clone(b.Images), Arms: slices.Clone(b.Arms)}
	of := map[Order][]Round{}
	for _, round := range b.Kept.All {
		o := round.Order
		o.Round = 0
		of[o] = append(of[o], round)
		if !slices.ContainsFunc(r.Images, func(i Image) bool { return i.Name == o.Image }) {
			r.Images = append(r.Images, round.Of)
		}
		if !slices.ContainsFunc(r.Arms, func(a Arm) bool { return a.Name == o.Arm }) {
			r.Arms = append(r.Arms, Arm{Name: o.Arm, About: round.About})
		}
	}
	for o, rounds := range of {
		r.Cells = append(r.Cells, cellOf(o, rounds))
	}
	r.order()
	for n, c := range r.Cells {
		if first := r.cell(r.Arms[0].Name, c.place()); first != nil {
			at := c.place()
			at.Arm = c.Arm
			theirs := of[at]
			at.Arm = first.Arm
			r.Cells[n].Times = times(theirs, of[at])
			r.Cells[n].CPUTimes = c.CPUNs / first.CPUNs
		}
	}
	return r
}

// times compares the pulls of each round that both played in one run: on another day the machine
// does something else beside.
func times(theirs, first []Round) bench.Quantiles {
	var all []float64
	for _, one := range theirs {
		for _, other := range first {
			if one.Run.Equal(other.Run) && one.Order.Round == other.Order.Round {
				all = append(all, one.Ms/other.Ms)
			}
		}
	}
	return bench.QuantilesOf(all)
}

// machine says on what was measured.
func machine() string { return bench.Machine() + ", an ext4 of its own for each pull" }

// order sorts the cells: by image, conditions and arm.
func (r *Result) order() {
	arm := func(c Cell) int {
		return slices.IndexFunc(r.Arms, func(a Arm) bool { return a.Name == c.Arm })
	}
	image := func(c Cell) int {
		return slices.IndexFunc(r.Images, func(i Image) bool { return i.Name == c.Image })
	}
	slices.SortFunc(r.Cells, func(x, y Cell) int {
		return cmp.Or(image(x)-image(y), x.Mbits-y.Mbits, x.CPUs-y.CPUs, arm(x)-arm(y))
	})
}

func cellOf(o Order, rounds []Round) Cell {
	of := rounds[0].Of
	c := Cell{Image: o.Image, Mbits: o.Mbits, CPUs: o.CPUs, Arm: o.Arm}
	median := func(of func(Round) float64) float64 {
		var values []float64
		for _, round := range rounds {
			values = append(values, of(round))
		}
		return bench.QuantilesOf(values).Median
	}
	var took []float64
	for _, round := range rounds {
		took = append(took, round.Ms)
		if round.Inflater != "" && !slices.Contains(c.Inflaters, round.Inflater) {
			c.Inflaters = append(c.Inflaters, round.Inflater)
		}
		for stage := range round.StagesMs {
			if c.StagesMs == nil {
				c.StagesMs = map[string]float64{}
			}
			c.StagesMs[stage] = median(func(r Round) float64 { return r.StagesMs[stage] })
		}
	}
	c.Ms = bench.QuantilesOf(took)
	whole := float64(of.Whole)
	c.CPUNs = median(func(r Round) float64 { return r.CPUMs * 1e6 / whole })
	c.Kept = median(func(r Round) float64 { return float64(r.Kept) / whole })
	c.Written = median(func(r Round) float64 { return float64(r.Written) / whole })
	c.SyncedMs = median(func(r Round) float64 { return r.SyncedMs })
	c.MemoryMiB = median(func(r Round) float64 { return float64(r.Memory) / (1 << 20) })
	if o.Mbits > 0 {
		c.OfWire = c.Ms.Median / (float64(of.Bytes) * 8 / 1000 / float64(o.Mbits))
	}
	return c
}

func (r *Result) cell(arm string, at Order) *Cell {
	for n := range r.Cells {
		if c := &r.Cells[n]; c.Arm == arm && c.place() == at {
			return c
		}
	}
	return nil
}

// Print prints the result for a person.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintln(w, r.Machine)
	for _, one := range r.Images {
		fmt.Fprintf(w, "%s: %d layers, %.0f MB as sent, %.0f MB of archives, %d files\n", one.Name,
			one.Layers, float64(one.Bytes)/1e6, float64(one.Whole)/1e6, one.Files)
	}
	for _, arm := range r.Arms {
		fmt.Fprintf(w, "%s: %s\n", arm.Name, arm.About)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "image\tMbit/s\tCPUs\tarm\tmedian ms\tmin\tmax\tpulls\ttimes\tmin\tmax\t"+
		"on disk ms\tof wire\tCPU ns/B\tkept B/B\twritten B/B\tMiB\tinflaters\t")
	any := func(n int) string {
		if n == 0 {
			return "all"
		}
		return fmt.Sprint(n)
	}
	for _, c := range r.Cells {
		wire := "–"
		if c.OfWire > 0 {
			wire = fmt.Sprintf("%.2f", c.OfWire)
		}
		times := "–\t–\t–"
		if c.Times.Count > 0 {
			times = fmt.Sprintf("%.2f\t%.2f\t%.2f", c.Times.Median, c.Times.Min, c.Times.Max)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.0f\t%.0f\t%.0f\t%d\t%s\t"+
			"%.0f\t%s\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t\n",
			c.Image, any(c.Mbits), any(c.CPUs), c.Arm, c.Ms.Median, c.Ms.Min, c.Ms.Max, c.Ms.Count,
			times, c.SyncedMs, wire, c.CPUNs, c.Kept, c.Written, c.MemoryMiB,
			strings.Join(c.Inflaters, ", "))
	}
	t.Flush()
}
