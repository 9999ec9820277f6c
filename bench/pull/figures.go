package pull

import (
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/bench/plot"
	"github.com/fastiov/fastiov/node-agent/image"
)

// Page is the name of the page in the folder of the figures.
const Page = "images.html"

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// A figure has the form of one of the Poby paper's.
type figure struct {
	File, Title, Says string
	Plot              plot.Figure
	SVG               template.HTML
}

// Draw writes the figures and the page into a folder. command is the command line that made them.
func (r *Result) Draw(folder, command string) error {
	figures := r.figures()
	for n, f := range figures {
		svg := f.Plot.SVG(f.Title, f.Says)
		figures[n].SVG = template.HTML(svg) // made of escaped texts and numbers
		if err := os.WriteFile(filepath.Join(folder, f.File+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	var text, table strings.Builder
	r.Print(&table)
	err := page.Execute(&text, map[string]any{"Figures": figures, "Table": table.String(),
		"Command": command})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, Page), []byte(text.String()), 0o644)
}

// figures returns what there is data for.
func (r *Result) figures() (all []figure) {
	for _, mbits := range r.distinct(func(c Cell) int { return c.Mbits }) {
		if bars := r.endToEnd(mbits); len(bars.Bars) > 0 {
			wire := "without a bound"
			if mbits > 0 {
				wire = fmt.Sprintf("at %d Mbit/s", mbits)
			}
			all = append(all, figure{File: fmt.Sprintf("end-to-end-%d", mbits),
				Title: "End to end, " + wire,
				Says:  "Median time of a cold pull until the image can be mounted (the paper's Fig. 12).",
				Plot:  bars})
		}
	}
	if bars := r.stages(); len(bars.Bars) > 0 {
		all = append(all, figure{File: "stages", Title: "Stages of our pulls", Plot: bars,
			Says: "What each stage took for itself, all layers together (the paper's Fig. 14): " +
				"stages overlap, so a bar is longer than its pull."})
	}
	for _, l := range []figure{
		{File: "layers", Title: "By the number of layers", Plot: r.byImage("deal/",
			"layers of equal contents", func(i Image) float64 { return float64(i.Layers) }),
			Says: "Median time of pulls of the same files in more or fewer layers."},
		{File: "size", Title: "By size", Plot: r.byImage("eight", "MB as sent",
			func(i Image) float64 { return float64(i.Bytes / 1e6) }),
			Says: "Median time of pulls of the lowest layers of one image."},
		{File: "bandwidth", Title: "By bandwidth", Plot: r.by("Mbit/s",
			func(c Cell) int { return c.Mbits }, func(c Cell) bool { return c.CPUs == 0 }),
			Says: "Median time of pulls of the eight layers."},
		{File: "cpus", Title: "By CPUs", Plot: r.by("CPUs", func(c Cell) int { return c.CPUs },
			func(c Cell) bool { return c.Mbits == 0 }),
			Says: "Median time of pulls of the eight layers, the receiver on so many CPUs."},
	} {
		if l.Plot.(plot.Lines).Series != nil {
			all = append(all, l)
		}
	}
	return all
}

func (r *Result) distinct(of func(Cell) int) []int {
	values := map[int]bool{}
	for _, c := range r.Cells {
		values[of(c)] = true
	}
	return slices.Sorted(maps.Keys(values))
}

func (r *Result) endToEnd(mbits int) plot.Bars {
	b := plot.Bars{Y: "median, s"}
	for n, arm := range r.Arms {
		b.Parts = append(b.Parts, arm.Name)
		b.Colours = append(b.Colours, plot.Series8[n%len(plot.Series8)])
	}
	for _, one := range r.Images {
		if strings.Contains(one.Name, "/") {
			continue
		}
		for n, arm := range r.Arms {
			c := r.cell(arm.Name, Order{Image: one.Name, Mbits: mbits})
			if c == nil {
				continue
			}
			values := make([]float64, len(r.Arms))
			values[n] = c.Ms.Median / 1000
			b.Bars = append(b.Bars, plot.Bar{Label: one.Name, Values: values,
				Note: fmt.Sprintf("%.2f", values[n])})
		}
	}
	return b
}

func (r *Result) stages() plot.Bars {
	b := plot.Bars{Y: "s", Parts: image.Stages}
	for n := range image.Stages {
		b.Colours = append(b.Colours, plot.Series8[n%len(plot.Series8)])
	}
	for _, one := range r.Images {
		c := r.cell(r.Arms[0].Name, Order{Image: one.Name})
		if c == nil || len(c.StagesMs) == 0 || strings.Contains(one.Name, "/") {
			continue
		}
		bar := plot.Bar{Label: one.Name, Note: fmt.Sprintf("pull %.2f", c.Ms.Median/1000)}
		for _, stage := range image.Stages {
			bar.Values = append(bar.Values, c.StagesMs[stage]/1000)
		}
		b.Bars = append(b.Bars, bar)
	}
	return b
}

// byImage draws the images whose names begin so.
func (r *Result) byImage(prefix, x string, at func(Image) float64) plot.Lines {
	lines := plot.Lines{X: x, Y: "median, s"}
	var images []Image
	for _, one := range r.Images {
		if strings.HasPrefix(one.Name, prefix) {
			images = append(images, one)
		}
	}
	slices.SortFunc(images, func(a, b Image) int { return int(at(a) - at(b)) })
	if len(images) < 2 {
		return lines
	}
	for n, arm := range r.Arms {
		s := plot.Series{Name: arm.Name, Colour: plot.Series8[n%len(plot.Series8)]}
		for _, one := range images {
			if c := r.cell(arm.Name, Order{Image: one.Name}); c != nil {
				s.Points = append(s.Points, plot.Point{X: at(one), Y: c.Ms.Median / 1000})
			}
		}
		lines.Series = append(lines.Series, s)
	}
	return lines
}

// by draws the eight layers by a condition, where there are several. 0 stands for no bound.
func (r *Result) by(x string, of func(Cell) int, counts func(Cell) bool) plot.Lines {
	lines := plot.Lines{X: x, Y: "median, s"}
	places := map[int]bool{}
	for n, arm := range r.Arms {
		s := plot.Series{Name: arm.Name, Colour: plot.Series8[n%len(plot.Series8)]}
		for _, c := range r.Cells {
			if c.Image == "eight" && c.Arm == arm.Name && counts(c) && of(c) > 0 {
				s.Points = append(s.Points, plot.Point{X: float64(of(c)), Y: c.Ms.Median / 1000})
				places[of(c)] = true
			}
		}
		lines.Series = append(lines.Series, s)
	}
	if len(places) < 2 {
		lines.Series = nil
	}
	return lines
}
