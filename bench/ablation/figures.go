package ablation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/bench/plot"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A figure is one of the page's: drawings, a table, or the reason why there is neither.
type figure struct {
	File   string // of the drawings, without its number and ending
	Title  string
	Says   string // what it shows
	Plots  []drawn
	Tables []table
	// Why it has no data; empty: it has.
	Missing string
	LeftOut string // the arms that it has no data of
	// The arguments that a run needs for it to have data.
	Wants string
}

// A drawn figure has a caption of its own if there are several.
type drawn struct {
	Caption string
	Plot    plot.Figure
}

// A table has a head and rows; the first column names the row.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// figures returns the paper's figures as this result has them.
func (r *Result) figures() []figure {
	return []figure{r.fig1(), r.fig5(), r.table1(), r.fig11(), r.fig12(), r.fig13(), r.fig14(),
		r.fig15(), r.network(), r.critical(), r.counts()}
}

// arms returns the arms that have data, as they were asked for.
func (r *Result) arms() (names []string) {
	for _, c := range r.Cells {
		if c.Function == r.function() && len(c.starts) > 0 && !slices.Contains(names, c.Arm) {
			names = append(names, c.Arm)
		}
	}
	return names
}

// sizes returns the concurrencies or memories that have data, in order.
func (r *Result) sizes(of func(Cell) int) (sizes []int) {
	for _, c := range r.Cells {
		if c.Function == r.function() && len(c.starts) > 0 {
			sizes = append(sizes, of(c))
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

func atOnce(c Cell) int { return c.N }
func memory(c Cell) int { return c.MemoryMiB }

// largest returns the arms' cells with the highest concurrency that has data, all at one memory:
// the least that most arms have. The paper's are with 200 at once. An arm without it is left out.
func (r *Result) largest() (cells []*Cell) {
	ns, memories := r.sizes(atOnce), r.sizes(memory)
	for _, m := range memories {
		var at []*Cell
		for _, name := range r.arms() {
			if c := r.cell(name, ns[len(ns)-1], m); c != nil {
				at = append(at, c)
			}
		}
		if len(at) > len(cells) {
			cells = at
		}
	}
	return cells
}

// reference returns the cell that the others are quoted against: none, the stock kernel of the
// paper's time, or the first.
func reference(cells []*Cell) *Cell {
	for _, name := range []string{"none", "l=bus,s=0", "paper-2024"} {
		for _, c := range cells {
			if c.Arm == name {
				return c
			}
		}
	}
	return cells[0]
}

const noData = "No data: "

func (r *Result) fig1() figure {
	f := figure{File: "fig1", Title: "Figure 1: start-up time by concurrency",
		Says:  "Average time of a cold start, for each arm.",
		Wants: "--arms 'nonet none all' --n 1,4,7"}
	ns, memories := r.sizes(atOnce), r.sizes(memory)
	if len(ns) < 2 {
		f.Missing = noData + "it needs more than one concurrency in --n."
		return f
	}
	lines := plot.Lines{X: "starts at once", Y: "average, s"}
	for i, name := range r.arms() {
		s := plot.Series{Name: name, Colour: plot.Series8[i%len(plot.Series8)]}
		for _, n := range ns {
			if c := r.cell(name, n, memories[0]); c != nil {
				s.Points = append(s.Points, plot.Point{X: float64(n), Y: c.EndToEnd.Mean / 1000})
			}
		}
		lines.Series = append(lines.Series, s)
	}
	f.Plots = []drawn{{Plot: lines}}
	t := table{Caption: fmt.Sprintf("ours: average s, %d MiB each", memories[0]),
		Head: []string{"at once"}}
	for _, n := range ns {
		t.Head = append(t.Head, fmt.Sprint(n))
	}
	t.Head = append(t.Head, "answered")
	for _, name := range r.arms() {
		row, answered := []string{name}, []string{}
		for _, n := range ns {
			word, of := "–", "–"
			if c := r.cell(name, n, memories[0]); c != nil {
				word, of = seconds(c.EndToEnd.Mean), c.answered()
			}
			row, answered = append(row, word), append(answered, of)
		}
		t.Rows = append(t.Rows, append(row, strings.Join(answered, ", ")))
	}
	f.Tables = []table{t, {Caption: "the paper's: average s, 512 MiB each",
		Head: []string{"at once", "200"}, Rows: [][]string{
			{"no network", seconds(1000 * (paperMean - paperOverhead))},
			{"stock, with SR-IOV", seconds(1000 * paperMean)},
		}}}
	return f
}

// stageColour is the place of a stage in the order in which stages are shown, as on the live page.
func stageColour(stage timeline.Stage) int { return slices.Index(timeline.Order, stage) }

func (r *Result) fig5() figure {
	f := figure{File: "fig5", Title: "Figure 5: where the time of each start goes",
		Says: "A row is a start of the last round, from the round's first request on." +
			" A colour is the stage that was innermost.",
		Wants: "--arms 'none all'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	for _, cell := range cells {
		var last *Round
		for _, round := range r.rounds {
			if round.Arm == cell.Arm && round.Function == cell.Function && round.N == cell.N &&
				round.MemoryMiB == cell.MemoryMiB && len(round.Starts) > 0 &&
				(last == nil || round.Number > last.Number) {
				last = round
			}
		}
		f.Plots = append(f.Plots, drawn{
			fmt.Sprintf("%s, %d at once, %d MiB, round %d, %d/%d answered", cell.Arm, cell.N,
				cell.MemoryMiB, last.Number, last.Answered, last.Requested),
			stretches(last.Starts)})
	}
	if len(f.Plots) == 0 {
		f.Missing = noData + "no start was answered."
	}
	return f
}

func stretches(starts []Start) plot.Stretches {
	starts = slices.Clone(starts)
	slices.SortStableFunc(starts, func(a, b Start) int {
		return cmp.Compare(a.Begin+a.EndToEnd, b.Begin+b.EndToEnd)
	})
	s := plot.Stretches{X: "s since the first request"}
	seen := map[timeline.Stage]bool{}
	for _, start := range starts {
		var row []plot.Stretch
		for _, piece := range start.Segments {
			seen[piece.Stage] = true
			row = append(row, plot.Stretch{From: piece.From / 1000, To: piece.To / 1000,
				Colour: stageColour(piece.Stage)})
		}
		s.Rows = append(s.Rows, row)
	}
	for _, stage := range timeline.Order {
		if seen[stage] {
			s.Names, s.Colours = append(s.Names, string(stage)),
				append(s.Colours, stageColour(stage))
		}
	}
	return s
}

func (r *Result) table1() figure {
	f := figure{Title: "Table 1: shares of the stages",
		Says: "In per cent: of the average start, and of the slowest hundredth of the starts," +
			" at least one.",
		Wants: "--arms 'none all'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	if len(cells) == 0 {
		f.Missing = noData + "no start was answered."
		return f
	}
	t := table{Head: []string{"stage", "paper, average", "paper, p99"}}
	for _, c := range cells {
		t.Head = append(t.Head, c.Arm+", average", c.Arm+", p99")
	}
	row := func(name string, mean, p99 float64, figure func(Start) float64) {
		words := []string{name, percent(mean), percent(p99)}
		if mean == 0 {
			words = []string{name, "–", "–"}
		}
		for _, c := range cells {
			words = append(words, percent(share(c.starts, figure)),
				percent(share(slowest(c.starts), figure)))
		}
		t.Rows = append(t.Rows, words)
	}
	for _, stage := range timeline.Order {
		var mean, p99 float64
		for _, p := range paperShares {
			if p.stage == stage {
				mean, p99 = p.mean, p.p99
			}
		}
		took := slices.ContainsFunc(cells, func(c *Cell) bool { return c.Stages[stage].Count > 0 })
		if took || mean > 0 {
			row(string(stage), mean, p99, func(s Start) float64 { return s.Stages[stage] })
		}
	}
	row("VF-related (1, 3, 4, 5)", paperVFMean, paperVFP99, Start.VFRelated)
	words := []string{"answered", "–", "–"}
	for _, c := range cells {
		words = append(words, c.answered(), "")
	}
	t.Rows = append(t.Rows, words)
	t.Caption = where(cells)
	f.Tables = []table{t}
	return f
}

// share returns the part of the starts' time in per cent.
func share(starts []Start, of func(Start) float64) float64 {
	var part, whole float64
	for _, s := range starts {
		part, whole = part+of(s), whole+s.EndToEnd
	}
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

// slowest returns the hundredth of the starts that took longest, at least one.
func slowest(starts []Start) []Start {
	starts = slices.Clone(starts)
	slices.SortStableFunc(starts, func(a, b Start) int {
		return cmp.Compare(b.EndToEnd, a.EndToEnd)
	})
	return starts[:min(len(starts), max(1, len(starts)/100))]
}

func (r *Result) fig11() figure {
	f := figure{File: "fig11", Title: "Figure 11: average start-up time by arm",
		Says: "In per cent of the arm that the others are quoted against." +
			" Pale bars are the paper's, in per cent of its stock software.",
		Wants: "--arms 'none all nonet all,r=0 all,d=eager all,l=bus'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	if len(cells) == 0 {
		f.Missing = noData + "no start was answered."
		return f
	}
	base := reference(cells)
	bars := plot.Bars{Y: "% of " + base.Arm, Parts: []string{"VF-related", "others"},
		Colours: []int{5, 3}}
	t := table{Caption: where(cells) + "; ours are quoted against " + base.Arm,
		Head: []string{"arm", "average s", "p99 s", "VF-related s", "% of " + base.Arm,
			"answered"}}
	for _, c := range cells {
		part := 100 * c.EndToEnd.Mean / base.EndToEnd.Mean
		vf := 100 * c.VFRelated.Mean / base.EndToEnd.Mean
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm, Values: []float64{vf, part - vf},
			Note: fmt.Sprintf("%.0f", part)})
		t.Rows = append(t.Rows, []string{c.Arm, seconds(c.EndToEnd.Mean), seconds(c.EndToEnd.P99),
			seconds(c.VFRelated.Mean), percent(part), c.answered()})
	}
	paper := table{Caption: "the paper's, in % of its stock software (16.2 s)",
		Head: []string{"bar", "%", "nearest arm here"}}
	for _, p := range paperArms {
		values := []float64{0, p.percent}
		if p.vf > 0 {
			values = []float64{p.vf, p.percent - p.vf}
		}
		bars.Bars = append(bars.Bars, plot.Bar{Label: p.name, Pale: true, Values: values,
			Note: fmt.Sprintf("%.0f", p.percent)})
		paper.Rows = append(paper.Rows, []string{p.name, percent(p.percent), p.ours})
	}
	f.Plots, f.Tables = []drawn{{Plot: bars}}, []table{t, paper}
	return f
}

func (r *Result) fig12() figure {
	f := figure{File: "fig12", Title: "Figure 12: distribution of the start-up time",
		Says: "The share of starts that took no longer.", Wants: "--arms 'nonet none all'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	if len(cells) == 0 {
		f.Missing = noData + "no start was answered."
		return f
	}
	lines := plot.Lines{X: "s", Y: "% of starts", Curve: true}
	var nonet *Cell
	for i, c := range cells {
		lines.Series = append(lines.Series, plot.Series{Name: c.Arm,
			Colour: plot.Series8[i%len(plot.Series8)], Points: distribution(c.starts)})
		if c.Arm == "nonet" {
			nonet = c
		}
	}
	f.Plots = []drawn{{Plot: lines}}
	t := table{Caption: "longer than without a VF; " + where(cells),
		Head: []string{"", "average", "p99", "whose", "answered"}}
	for _, p := range paperTails {
		t.Rows = append(t.Rows, []string{p.name, "+" + percent(p.mean), "+" + percent(p.p99),
			"the paper", "–"})
	}
	for _, c := range cells {
		if nonet != nil && c != nonet {
			t.Rows = append(t.Rows, []string{c.Arm, more(c.EndToEnd.Mean, nonet.EndToEnd.Mean),
				more(c.EndToEnd.P99, nonet.EndToEnd.P99), "ours", c.answered()})
		}
	}
	if nonet == nil {
		t.Caption += "; ours needs the arm nonet"
	}
	f.Tables = []table{t}
	return f
}

func more(a, b float64) string { return fmt.Sprintf("%+.1f %%", 100*(a/b-1)) }

// distribution returns the points at which a share of the starts is reached.
func distribution(starts []Start) []plot.Point {
	times := endToEnd(starts)
	slices.Sort(times)
	points := []plot.Point{{X: times[0] / 1000, Y: 0}}
	for i, at := range times {
		points = append(points, plot.Point{X: at / 1000,
			Y: 100 * float64(i+1) / float64(len(times))})
	}
	return points
}

func (r *Result) fig13() figure {
	f := figure{File: "fig13", Title: "Figure 13: what the start-up time depends on",
		Says: "A line is from the shortest to the longest start, a box from the median to the 90th" +
			" percentile, a mark at the 99th. The paper has times 46.7 to 65.6 % shorter with 10 to" +
			" 200 at once; with 50 at once and 2 GiB instead of 512 MiB its stock software takes" +
			" 60.5 % longer and FastIOV 21.5 %; on a fully loaded server its times are 65.7 to" +
			" 79.5 % shorter with 200 to 10.",
		Wants: "--n 1,4,7 --mem 256,512"}
	ns, memories := r.sizes(atOnce), r.sizes(memory)
	if len(ns) > 1 {
		groups := plot.Ranges{X: "starts at once", Y: "s", Names: r.arms()}
		for _, n := range ns {
			groups.Groups = append(groups.Groups, r.group(fmt.Sprint(n), n, memories[0]))
		}
		f.Plots = append(f.Plots, drawn{fmt.Sprintf("a: concurrency, %d MiB", memories[0]), groups})
	}
	if len(memories) > 1 {
		n := ns[len(ns)-1]
		groups := plot.Ranges{X: "MiB of each", Y: "s", Names: r.arms()}
		for _, m := range memories {
			groups.Groups = append(groups.Groups, r.group(fmt.Sprint(m), n, m))
		}
		f.Plots = append(f.Plots, drawn{fmt.Sprintf("b: memory, %d at once", n), groups})
	}
	if whole := r.loaded(); whole != nil {
		f.Plots = append(f.Plots, *whole)
	}
	var missing []string
	for i, of := range []string{"concurrency", "memory", "a fully loaded server"} {
		letter := string(rune('a' + i))
		if !slices.ContainsFunc(f.Plots, func(d drawn) bool {
			return strings.HasPrefix(d.Caption, letter+":")
		}) {
			missing = append(missing, of)
		}
	}
	if len(missing) > 0 {
		f.Missing = noData + "nothing was measured of " + strings.Join(missing, ", ") +
			". It needs two values of --n, of --mem, and two pairs of them with the same product."
	}
	return f
}

func (r *Result) group(label string, n, memory int) plot.Group {
	g := plot.Group{Label: label}
	for _, name := range r.arms() {
		var v *plot.Range
		if c := r.cell(name, n, memory); c != nil {
			e := c.EndToEnd
			v = &plot.Range{Min: e.Min / 1000, Median: e.Median / 1000, P90: e.P90 / 1000,
				P99: e.P99 / 1000, Max: e.Max / 1000}
		}
		g.Ranges = append(g.Ranges, v)
	}
	return g
}

// loaded draws the cells that share the most memory among all starts, or returns nil if that is in
// one way only.
func (r *Result) loaded() *drawn {
	most, pairs := 0, map[int][][2]int{}
	for _, n := range r.sizes(atOnce) {
		for _, m := range r.sizes(memory) {
			if slices.ContainsFunc(r.arms(), func(a string) bool {
				return r.cell(a, n, m) != nil
			}) {
				pairs[n*m] = append(pairs[n*m], [2]int{n, m})
			}
		}
	}
	for whole, ways := range pairs {
		if len(ways) > 1 {
			most = max(most, whole)
		}
	}
	if most == 0 {
		return nil
	}
	groups := plot.Ranges{X: "starts at once × MiB", Y: "s", Names: r.arms()}
	for _, way := range pairs[most] {
		groups.Groups = append(groups.Groups,
			r.group(fmt.Sprintf("%d × %d", way[0], way[1]), way[0], way[1]))
	}
	return &drawn{fmt.Sprintf("c: %d MiB divided", most), groups}
}

func (r *Result) fig14() figure {
	f := figure{File: "fig14", Title: "Figure 14: beside a software network",
		Says: "Whole times and averages beside those with the arm tap: a tap of a bridge. The paper" +
			" has FastIOV at 41.3 % less total and 31.8 % less average time than ipvtap.",
		Wants: "--arms 'nonet tap none'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	at := slices.IndexFunc(cells, func(c *Cell) bool { return c.Arm == "tap" })
	if at < 0 {
		f.Missing = noData + "it needs the arm tap."
		return f
	}
	tap := cells[at]
	bars := plot.Bars{Y: "average, s", Parts: []string{"VF-related", "others"},
		Colours: []int{5, 3}}
	t := table{Caption: where(cells), Head: []string{"arm", "average s", "longest s",
		"against tap, average", "longest", "answered"}}
	for _, c := range cells {
		mean := c.EndToEnd.Mean / 1000
		vf := c.VFRelated.Mean / 1000
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm, Values: []float64{vf, mean - vf},
			Note: seconds(c.EndToEnd.Mean)})
		t.Rows = append(t.Rows, []string{c.Arm, seconds(c.EndToEnd.Mean), seconds(c.EndToEnd.Max),
			more(c.EndToEnd.Mean, tap.EndToEnd.Mean), more(c.EndToEnd.Max, tap.EndToEnd.Max),
			c.answered()})
	}
	f.Plots, f.Tables = []drawn{{Plot: bars}}, []table{t}
	return f
}

func (r *Result) critical() figure {
	f := figure{File: "critical", Title: "The critical path without the guests' computing",
		Says: "The end-to-end time less the time in which the guest's own processor computed, beside" +
			" the end-to-end time. The paper has no such figure.",
		Wants: "--arms 'nonet none all'"}
	cells := r.largest()
	f.LeftOut = r.leftOut(cells)
	if len(cells) == 0 {
		f.Missing = noData + "no start was answered."
		return f
	}
	if !slices.ContainsFunc(cells, func(c *Cell) bool { return c.GuestCPU.Max > 0 }) {
		f.Missing = noData + "no guest computed. Containers have none; of a VMM the log says why."
		if r.Simulated {
			f.Missing = noData + "no guest computed, since these starts are simulated."
		}
		return f
	}
	bars := plot.Bars{Y: "average, s", Parts: []string{"critical path", "the guest computes"},
		Colours: []int{8, 14}}
	t := table{Caption: where(cells), Head: []string{"arm", "end to end s", "critical path s",
		"median", "p99", "longest", "against nonet, average", "longest", "answered"}}
	var nonet *Cell
	for _, c := range cells {
		if c.Arm == "nonet" {
			nonet = c
		}
	}
	for _, c := range cells {
		bars.Bars = append(bars.Bars, plot.Bar{Label: c.Arm,
			Values: []float64{c.Critical.Mean / 1000, c.GuestCPU.Mean / 1000},
			Note:   seconds(c.EndToEnd.Mean)})
		row := []string{c.Arm, seconds(c.EndToEnd.Mean), seconds(c.Critical.Mean),
			seconds(c.Critical.Median), seconds(c.Critical.P99), seconds(c.Critical.Max), "–", "–",
			c.answered()}
		if nonet != nil {
			row[6] = fmt.Sprintf("%.2f", c.Critical.Mean/nonet.Critical.Mean)
			row[7] = fmt.Sprintf("%.2f", c.Critical.Max/nonet.Critical.Max)
		}
		t.Rows = append(t.Rows, row)
	}
	f.Plots, f.Tables = []drawn{{Plot: bars}}, []table{t}
	return f
}

func (r *Result) counts() figure {
	f := figure{Title: "Counts beside the times",
		Says: "For each start, between the first request of a round and its last answer, the median" +
			" of the rounds. What is mapped again counts again. Execs and mounts are the whole" +
			" host's, but for rooms of VMMs that are made for later starts. A VMM is two execs.",
		Wants: "--arms 'none all'"}
	t := table{Head: []string{"arm", "function", "at once", "MiB", "answered", "resets",
		"MiB mapped", "MiB zeroed", "execs", "mounts", "iptables calls"}}
	for _, c := range r.Cells {
		if len(c.starts) == 0 || len(c.Counts) == 0 {
			continue
		}
		row := []string{c.Arm, c.Function, fmt.Sprint(c.N), fmt.Sprint(c.MemoryMiB),
			c.answered()}
		for _, count := range Counts {
			word := "–"
			if spread, counted := c.Counts[count]; counted {
				word = fmt.Sprintf("%.1f", spread.Median)
			}
			row = append(row, word)
		}
		t.Rows = append(t.Rows, row)
	}
	if len(t.Rows) == 0 {
		f.Missing = noData + "nothing was counted; the log says why."
		if r.Simulated {
			f.Missing = noData + "a simulation resets, maps and starts nothing."
		}
		return f
	}
	f.Tables = []table{t}
	return f
}

func seconds(ms float64) string { return fmt.Sprintf("%.2f", ms/1000) }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", v) }
