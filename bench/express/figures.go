package express

import (
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fastiov/fastiov/bench/plot"
)

// Page is the name of the page in the folder of the figures.
const Page = "scon.html"

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// A figure has the form of one of the SCON paper's.
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
		"Beside": r.beside(), "Command": command})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, Page), []byte(text.String()), 0o644)
}

func cost(c Cell) float64 { return c.CPUNs.Median / 1000 }
func rate(c Cell) float64 { return 1e6 / c.CPUNs.Median }
func half(c Cell) float64 { return c.P50Us }
func tail(c Cell) float64 { return c.P99Us }
func soft(c Cell) float64 { return c.SoftirqNs / 1000 }

// figures returns what there is data for.
func (r *Result) figures() (all []figure) {
	for _, l := range []struct {
		file, title, says, prefix, y string
		value                        func(Cell) float64
	}{
		{"tcp", "TCP by size", "CPU time of a message, of both ends and all between them " +
			"(the paper's Fig. 11 has the throughput of one CPU).", "tcp-", "µs", cost},
		{"udp", "UDP by size", "The same for UDP (the paper's Fig. 15).", "udp-", "µs", cost},
		{"softirq-tcp", "Softirq of TCP", "How much of that was in softirqs (Fig. 11a).",
			"tcp-", "µs", soft},
		{"softirq-udp", "Softirq of UDP", "The same for UDP (Fig. 15a).", "udp-", "µs", soft},
		{"containers", "By containers", "Messages of 64 bytes over TCP that one CPU second is" +
			" enough for (Fig. 16 has a CPU for each container).", "containers-", "thousands",
			rate},
		{"latency", "There and back by size", "Median time of a message over TCP and its answer" +
			" (Fig. 12a).", "rr-tcp-", "µs", half},
		{"latency-99", "There and back by size, the tail", "The 99th percentile (Fig. 12b).",
			"rr-tcp-", "µs", tail},
	} {
		if lines := r.by(l.prefix, l.y, l.value); lines.Series != nil {
			all = append(all, figure{File: l.file, Title: l.title, Says: l.says, Plot: lines})
		}
	}
	for _, b := range []struct {
		file, title, says, y string
		loads                []string
		value                func(Cell) float64
	}{
		{"bulk", "Bulk", "CPU time of 64 KiB over TCP, from the container and to it.", "µs",
			[]string{"bulk-out", "bulk-in"}, cost},
		{"rules", "1,000 rules", "CPU time with 1,000 rules more, which no packet matches.", "µs",
			[]string{"udp-64", "rr-udp-1", "rr-tcp-1"}, cost},
		{"flows", "Flows of things", "The 99th percentile of the time of flows of 100 to 1,400" +
			" bytes (Fig. 14).", "µs", []string{"flows"}, tail},
		{"http", "HTTP", "CPU time of a page of 64 bytes by nginx (Fig. 8a).", "µs",
			[]string{"http"}, cost},
		{"http-latency", "HTTP, latency", "Median time of such a page (Fig. 8b).", "µs",
			[]string{"http"}, half},
		{"mqtt", "MQTT", "CPU time of a message of 64 bytes by mosquitto (Fig. 9a).", "µs",
			[]string{"mqtt"}, cost},
		{"mqtt-latency", "MQTT, latency", "Median time from publisher to subscriber (Fig. 9b).",
			"µs", []string{"mqtt"}, half},
		{"answered", "There and back", "CPU time of a message and its answer, of a connection" +
			" with both, and of a flow's first packet with its answer.", "µs",
			[]string{"rr-udp-1", "rr-tcp-1", "crr", "first"}, cost},
	} {
		if bars := r.bars(b.loads, b.y, b.value); len(bars.Bars) > 0 {
			all = append(all, figure{File: b.file, Title: b.title, Says: b.says, Plot: bars})
		}
	}
	return all
}

// by draws loads whose names are a prefix and a number.
func (r *Result) by(prefix, y string, value func(Cell) float64) plot.Lines {
	lines := plot.Lines{X: "bytes of a message", Y: y}
	if prefix == "containers-" {
		lines.X = "containers"
	}
	for n, arm := range r.Arms {
		s := plot.Series{Name: arm.Name, Colour: plot.Series8[n%len(plot.Series8)]}
		for _, c := range r.Cells {
			size, named := strings.CutPrefix(c.Load, prefix)
			if at, err := strconv.Atoi(size); named && err == nil && c.Arm == arm.Name {
				s.Points = append(s.Points, plot.Point{X: float64(at), Y: value(c)})
			}
		}
		if len(s.Points) > 1 {
			lines.Series = append(lines.Series, s)
		}
	}
	return lines
}

// bars draws a bar for each load and arm.
func (r *Result) bars(loads []string, y string, value func(Cell) float64) plot.Bars {
	b := plot.Bars{Y: y}
	for n, arm := range r.Arms {
		b.Parts = append(b.Parts, arm.Name)
		b.Colours = append(b.Colours, plot.Series8[n%len(plot.Series8)])
	}
	for _, load := range loads {
		for n, arm := range r.Arms {
			c := r.cell(load, arm.Name)
			if c == nil {
				continue
			}
			values := make([]float64, len(r.Arms))
			values[n] = value(*c)
			b.Bars = append(b.Bars, plot.Bar{Label: load, Values: values,
				Note: fmt.Sprintf("%.3g", values[n])})
		}
	}
	return b
}
