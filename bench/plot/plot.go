// Package plot draws figures as SVG: lines, bars, ranges and stretches of time.
//
// A figure is one text without scripts, links or fonts of its own. It has its colours for light and
// dark and for paper in a style sheet, so it may stand alone or in a page. The same input gives the
// same bytes.
package plot

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Size of a figure, and of the margins around its field, in pixels.
const (
	wide   = 720
	left   = 64
	right  = 16
	bottom = 46
	top    = 16
	line   = 18 // of the legend
)

// Colours are numbered; the style sheet has Palette of them.
const Palette = 15

// style has the colours of text, lines and marks. Marks keep their order between light and dark.
const style = `<style>
.plot{--text:#16202c;--soft:#55606e;--line:#dfe4ea;--panel:#fff;` +
	`--c0:#8c98a6;--c1:#a3744c;--c2:#7b8f1f;--c3:#3b6fa3;--c4:#55647a;--c5:#d9541e;--c6:#e0991a;--c7:#b06fc9;` +
	`--c8:#2176e0;--c9:#149487;--c10:#4c9a3c;--c11:#cc2f86;--c12:#b89b05;--c13:#6a49b0;--c14:#b9bfc7}
@media (prefers-color-scheme:dark){.plot{--text:#e6ebf1;--soft:#9aa7b5;--line:#29323d;--panel:#161c24;` +
	`--c0:#7d8a99;--c1:#c39267;--c2:#a8bd45;--c3:#6b9fd4;--c4:#8494ab;--c5:#ff7a45;--c6:#f5b945;--c7:#c98fe0;` +
	`--c8:#4d9bff;--c9:#2fbfae;--c10:#6fbf5d;--c11:#f06bb3;--c12:#e3c933;--c13:#9c80e0;--c14:#5a6572}}
@media print{.plot{--text:#000;--soft:#444;--line:#ccc;--panel:#fff;` +
	`--c0:#8c98a6;--c1:#a3744c;--c2:#7b8f1f;--c3:#3b6fa3;--c4:#55647a;--c5:#d9541e;--c6:#e0991a;--c7:#b06fc9;` +
	`--c8:#2176e0;--c9:#149487;--c10:#4c9a3c;--c11:#cc2f86;--c12:#b89b05;--c13:#6a49b0;--c14:#b9bfc7}}
.plot text{font:12px system-ui,"Segoe UI","DejaVu Sans",sans-serif;fill:var(--text)}
.plot .small{font-size:10.5px}.plot .soft{fill:var(--soft)}.plot .grid{stroke:var(--line)}.plot .axis{stroke:var(--soft)}
.plot .back{fill:var(--panel)}
</style>
`

// A drawing is a figure that grows.
type drawing struct {
	strings.Builder
	high float64
}

// begin begins a figure of that height. title and about say to readers who see no pictures what it
// shows.
func begin(high float64, title, about string) *drawing {
	d := &drawing{high: high}
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 %d %s">`+
		"\n<title>%s</title>\n<desc>%s</desc>\n%s", wide, number(high), escape(title),
		escape(about), style)
	d.printf("<rect class=\"back\" width=\"%d\" height=\"%s\"/>\n", wide, number(high))
	return d
}

func (d *drawing) printf(format string, args ...any) { fmt.Fprintf(d, format, args...) }

func (d *drawing) end() []byte {
	d.printf("</svg>\n")
	return []byte(d.String())
}

// text writes a text; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	d.printf("<text x=\"%s\" y=\"%s\" text-anchor=\"%s\"%s>%s</text>\n", number(x), number(y),
		anchor, classed(class), escape(text))
}

func (d *drawing) segment(x1, y1, x2, y2 float64, class string) {
	d.printf("<path d=\"M%s %sL%s %s\"%s/>\n", number(x1), number(y1), number(x2), number(y2),
		classed(class))
}

func classed(class string) string {
	if class == "" {
		return ""
	}
	return ` class="` + class + `"`
}

func colour(c int) string { return fmt.Sprintf("var(--c%d)", c%Palette) }

// legend names colours in rows above the field, and returns where it ends.
func (d *drawing) legend(names []string, colours []int, dashed []bool) (y float64) {
	y = top
	for i, place := range places(names) {
		x, name := place.X, names[i]
		y = top + place.Y
		if dashed != nil && dashed[i] {
			d.printf("<path d=\"M%s %sh14\" stroke=\"%s\" stroke-width=\"2\""+
				" stroke-dasharray=\"4 3\"/>\n",
				number(x), number(y-4), colour(colours[i]))
		} else {
			d.printf("<rect x=\"%s\" y=\"%s\" width=\"12\" height=\"10\" rx=\"2\" fill=\"%s\"/>\n",
				number(x), number(y-9), colour(colours[i]))
		}
		d.text(x+18, y, "start", "", name)
	}
	return y + 12
}

// places returns where the names of a legend stand, below its upper end.
func places(names []string) (at []Point) {
	x, y := float64(left), 0.0
	for _, name := range names {
		length := 36 + 7.2*float64(len([]rune(name)))
		if x+length > wide-right && x > left {
			x, y = left, y+line
		}
		at = append(at, Point{x, y})
		x += length
	}
	return at
}

// A field holds the marks: it maps values to pixels.
type field struct {
	d          *drawing
	x0, x1, y0 float64 // y0 is the upper end
	y1         float64
	most       float64 // the value at the upper end
}

// rise draws the upward axis from 0 to most, with its label.
func (d *drawing) rise(from, most float64, label string) field {
	f := field{d, left, wide - right, from + 22, d.high - bottom, most}
	step := stepOf(most)
	f.most = step * math.Ceil(most/step-1e-9)
	if f.most == 0 {
		f.most = 1
	}
	for n := 0; float64(n)*step <= f.most*1.0001; n++ {
		value := float64(n) * step
		d.segment(f.x0, f.y(value), f.x1, f.y(value), "grid")
		d.text(f.x0-8, f.y(value)+4, "end", "soft", number(value))
	}
	d.text(8, from+6, "start", "soft", label)
	d.segment(f.x0, f.y1, f.x1, f.y1, "axis")
	return f
}

func (f field) y(value float64) float64 { return f.y1 - (f.y1-f.y0)*value/f.most }

// below names the level axis.
func (f field) below(label string) {
	f.d.text((f.x0+f.x1)/2, f.d.high-8, "middle", "soft", label)
}

// stepOf returns 1, 2 or 5 times a power of ten, so that most has three to eight steps.
func stepOf(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/3)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if most/(power*factor) <= 7 {
			return power * factor
		}
	}
	return power * 10
}

// number writes a figure with at most two decimals.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'f', 2, 64)
	text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	if text == "-0" {
		return "0"
	}
	return text
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}

// short writes a figure for people: three digits that count.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// distinct returns the values in order, each once.
func distinct(values []float64) []float64 {
	slices.Sort(values)
	return slices.Compact(values)
}
