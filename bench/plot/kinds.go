package plot

import (
	"slices"
	"strings"
)

// A Figure can be drawn.
type Figure interface {
	SVG(title, about string) []byte
}

// Lines are series of points. With Curve they are the curves of distributions, else each point has
// a mark and stands at its own place of a level axis whose places are equally far apart.
type Lines struct {
	X, Y   string // what the axes show
	Series []Series
	Curve  bool
}

// A Series is one line. Dashed is for figures of others.
type Series struct {
	Name   string
	Colour int
	Dashed bool
	Points []Point
}

// A Point is one value.
type Point struct{ X, Y float64 }

// SVG implements Figure.
func (l Lines) SVG(title, about string) []byte {
	d := begin(340, title, about)
	var names []string
	var colours []int
	var dashed []bool
	var levels []float64
	var mostX, mostY float64
	for _, s := range l.Series {
		names, colours = append(names, s.Name), append(colours, s.Colour)
		dashed = append(dashed, s.Dashed)
		for _, p := range s.Points {
			levels = append(levels, p.X)
			mostX, mostY = max(mostX, p.X), max(mostY, p.Y)
		}
	}
	f := d.rise(d.legend(names, colours, dashed), mostY, l.Y)
	levels, mostX = distinct(levels), max(mostX, 1e-9)
	x := func(value float64) float64 {
		i := slices.Index(levels, value)
		return f.x0 + (f.x1-f.x0)*(float64(i)+0.5)/float64(len(levels))
	}
	if l.Curve {
		step := stepOf(mostX)
		x = func(value float64) float64 { return f.x0 + (f.x1-f.x0)*value/(mostX*1.02) }
		for n := 0; float64(n)*step <= mostX; n++ {
			d.text(x(float64(n)*step), f.y1+18, "middle", "soft", number(float64(n)*step))
		}
	} else {
		for _, place := range levels {
			d.text(x(place), f.y1+18, "middle", "", number(place))
		}
	}
	f.below(l.X)
	for _, s := range l.Series {
		var path strings.Builder
		for i, p := range s.Points {
			switch {
			case i == 0:
				path.WriteString("M" + number(x(p.X)) + " " + number(f.y(p.Y)))
			case l.Curve: // a share is reached where a value is
				path.WriteString("H" + number(x(p.X)) + "V" + number(f.y(p.Y)))
			default:
				path.WriteString("L" + number(x(p.X)) + " " + number(f.y(p.Y)))
			}
		}
		dash := ""
		if s.Dashed {
			dash = ` stroke-dasharray="6 4"`
		}
		d.printf("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
			path.String(), colour(s.Colour), dash)
		for _, p := range s.Points {
			if !l.Curve {
				d.printf("<circle cx=\"%s\" cy=\"%s\" r=\"4\" fill=\"%s\">"+
					"<title>%s: %s</title></circle>\n",
					number(x(p.X)), number(f.y(p.Y)), colour(s.Colour), escape(s.Name), short(p.Y))
			}
		}
	}
	return d.end()
}

// Bars are bars of parts that stand on each other.
type Bars struct {
	Y     string
	Parts []string // their names, from below
	// their colours
	Colours []int
	Bars    []Bar
}

// A Bar is one bar. Pale is for figures of others.
type Bar struct {
	Label  string
	Pale   bool
	Values []float64
	Note   string // above it
}

// SVG implements Figure.
func (b Bars) SVG(title, about string) []byte {
	d := begin(340, title, about)
	most := 0.0
	for _, bar := range b.Bars {
		sum := 0.0
		for _, v := range bar.Values {
			sum += v
		}
		most = max(most, sum)
	}
	f := d.rise(d.legend(b.Parts, b.Colours, nil), most, b.Y)
	pitch := (f.x1 - f.x0) / float64(len(b.Bars))
	thick := min(56, pitch*0.66)
	for i, bar := range b.Bars {
		middle, sum := f.x0+pitch*(float64(i)+0.5), 0.0
		opacity := ""
		if bar.Pale {
			opacity = ` fill-opacity="0.45"`
		}
		for part, v := range bar.Values {
			if v > 0 {
				if bar.Pale { // no line of the axis shines through
					d.printf("<rect class=\"back\" x=\"%s\" y=\"%s\" width=\"%s\""+
						" height=\"%s\"/>\n",
						number(middle-thick/2), number(f.y(sum+v)), number(thick),
						number(f.y(sum)-f.y(sum+v)))
				}
				d.printf("<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\"%s/>\n",
					number(middle-thick/2), number(f.y(sum+v)), number(thick),
					number(f.y(sum)-f.y(sum+v)), colour(b.Colours[part]), opacity)
			}
			sum += v
		}
		d.text(middle, f.y(sum)-5, "middle", "", bar.Note)
		for row, word := range lines(bar.Label, int(pitch/5.8)) {
			d.text(middle, f.y1+15+13*float64(row), "middle", "soft small", word)
		}
	}
	return d.end()
}

// lines breaks a label at commas and spaces into lines of about width characters.
func lines(label string, width int) (rows []string) {
	row := ""
	for _, word := range strings.SplitAfter(strings.ReplaceAll(label, ",", ", "), " ") {
		if row != "" && len(row)+len(strings.TrimSpace(word)) > width {
			rows, row = append(rows, strings.TrimSpace(row)), ""
		}
		row += word
	}
	return append(rows, row)
}

// Ranges show distributions side by side, in groups: a line from the least to the most, a box from
// the median to the 90th percentile, and a mark at the 99th.
type Ranges struct {
	X, Y   string
	Names  []string // of the ranges of a group
	Groups []Group
}

// A Group holds the distributions at one place. A nil one is left out.
type Group struct {
	Label  string
	Ranges []*Range
}

// A Range is one distribution.
type Range struct{ Min, Median, P90, P99, Max float64 }

// SVG implements Figure.
func (r Ranges) SVG(title, about string) []byte {
	d := begin(340, title, about)
	var colours []int
	for i := range r.Names {
		colours = append(colours, Series8[i%len(Series8)])
	}
	most := 0.0
	for _, g := range r.Groups {
		for _, v := range g.Ranges {
			if v != nil {
				most = max(most, v.Max)
			}
		}
	}
	f := d.rise(d.legend(r.Names, colours, nil), most, r.Y)
	pitch := (f.x1 - f.x0) / float64(len(r.Groups))
	for i, g := range r.Groups {
		each := min(40, pitch*0.8/float64(len(r.Names)))
		first := f.x0 + pitch*(float64(i)+0.5) - each*float64(len(r.Names)-1)/2
		for j, v := range g.Ranges {
			if v == nil {
				continue
			}
			x, c := first+each*float64(j), colour(colours[j])
			d.printf("<g stroke=\"%s\" stroke-width=\"2\">"+
				"<title>%s, %s: median %s, p99 %s</title>\n", c,
				escape(g.Label), escape(r.Names[j]), short(v.Median), short(v.P99))
			d.segment(x, f.y(v.Min), x, f.y(v.Max), "")
			d.segment(x-each*0.28, f.y(v.P99), x+each*0.28, f.y(v.P99), "")
			d.printf("<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\"/>\n</g>\n",
				number(x-each*0.28), number(f.y(v.P90)), number(each*0.56),
				number(max(1, f.y(v.Median)-f.y(v.P90))), c)
		}
		d.text(f.x0+pitch*(float64(i)+0.5), f.y1+18, "middle", "", g.Label)
	}
	f.below(r.X)
	return d.end()
}

// Series8 are colours that are told apart easily.
var Series8 = []int{8, 5, 10, 13, 12, 9, 11, 1}

// Stretches show when what was done: a row for each thing, coloured by what was done.
type Stretches struct {
	X       string
	Names   []string // of the colours that occur
	Colours []int
	Rows    [][]Stretch
}

// A Stretch is a piece of a row.
type Stretch struct {
	From, To float64
	Colour   int
}

// SVG implements Figure.
func (s Stretches) SVG(title, about string) []byte {
	row := min(18, max(1.6, 320/float64(len(s.Rows))))
	rows := row * float64(len(s.Rows))
	legend := 0.0
	for _, place := range places(s.Names) {
		legend = max(legend, place.Y)
	}
	d := begin(rows+legend+top+bottom+20, title, about)
	from := d.legend(s.Names, s.Colours, nil) + 4
	most := 0.0
	for _, stretches := range s.Rows {
		for _, stretch := range stretches {
			most = max(most, stretch.To)
		}
	}
	most = max(most, 1e-9)
	const begins = 16
	x := func(value float64) float64 { return begins + (wide-right-begins)*value/most }
	step := stepOf(most)
	for n := 0; float64(n)*step <= most; n++ {
		at := x(float64(n) * step)
		d.segment(at, from, at, from+rows, "grid")
		d.text(at, from+rows+17, "middle", "soft", number(float64(n)*step))
	}
	d.text((begins+wide-right)/2, from+rows+36, "middle", "soft", s.X)
	for i, stretches := range s.Rows {
		for _, stretch := range stretches {
			d.printf("<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\"/>\n",
				number(x(stretch.From)), number(from+row*float64(i)),
				number(x(stretch.To)-x(stretch.From)), number(row*0.86), colour(stretch.Colour))
		}
	}
	return d.end()
}
