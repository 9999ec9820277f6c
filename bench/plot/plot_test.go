package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

var examples = map[string]Figure{
	"lines": Lines{X: "starts at once", Y: "average, s", Series: []Series{
		{Name: "none", Colour: 8, Points: []Point{{1, 11.2}, {4, 58}, {7, 130}}},
		{Name: "the paper's <stock>", Colour: 5, Dashed: true, Points: []Point{{7, 16.2}}},
	}},
	"curve": Lines{X: "s", Y: "% of starts", Curve: true, Series: []Series{
		{Name: "all", Colour: 8, Points: []Point{{1.5, 0}, {1.5, 50}, {2.25, 100}}}}},
	"bars": Bars{Y: "% of none", Parts: []string{"VF-related", "others"}, Colours: []int{5, 3},
		Bars: []Bar{{Label: "none", Values: []float64{70, 30}, Note: "100"},
			{Label: "all,r=0 with a long name", Values: []float64{3, 31}, Note: "34"},
			{Label: "Vanilla", Pale: true, Values: []float64{70.1, 29.9}, Note: "100"}}},
	"ranges": Ranges{X: "starts at once", Y: "s", Names: []string{"none", "all"}, Groups: []Group{
		{"1", []*Range{{10, 11, 12, 13, 13}, {7, 8, 8, 9, 9}}},
		{"7", []*Range{{100, 130, 156, 190, 193}, nil}}}},
	"stretches": Stretches{X: "s since the first request", Names: []string{"vmm", "agent"},
		Colours: []int{4, 10}, Rows: [][]Stretch{{{0, 1.25, 4}, {1.25, 3, 10}}, {{0.5, 4, 4}}}},
	"empty": Lines{X: "s", Y: "% of starts", Curve: true},
}

func TestFiguresAreTheGoldenOnes(t *testing.T) {
	for name, figure := range examples {
		got := figure.SVG("Figure "+name, "What it shows & how")
		path := filepath.Join("testdata", name+".svg")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from %s; look at it, then: go test ./bench/plot -update", name,
				path)
		}
	}
}

// A figure is XML, has its title, has no script and loads nothing.
func TestFiguresStandAlone(t *testing.T) {
	for name, figure := range examples {
		svg := figure.SVG("Figure "+name, "What it shows & how")
		var seen []string
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if start, is := token.(xml.StartElement); is {
				seen = append(seen, start.Name.Local)
				for _, a := range start.Attr {
					if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
						t.Errorf("%s has %s=%q", name, a.Name.Local, a.Value)
					}
					if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
						t.Errorf("%s has %s=%q", name, a.Name.Local, a.Value)
					}
				}
			}
		}
		if all := strings.Join(seen, " "); !strings.HasPrefix(all, "svg title desc") ||
			strings.Contains(all, "script") || strings.Contains(all, "image") {
			t.Errorf("%s has the elements %s", name, all)
		}
	}
}

func TestAnAxisHasThreeToEightSteps(t *testing.T) {
	for _, most := range []float64{0.003, 0.9, 1, 3, 7.1, 11.2, 130, 193, 1999, 16200} {
		step := stepOf(most)
		if n := most / step; n < 2.9 || n > 7.01 {
			t.Errorf("up to %v there are %.1f steps of %v", most, n, step)
		}
	}
}
