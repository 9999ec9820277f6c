package dashboards

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A board is a dashboard under construction: panels are added from left to right, and flow into
// rows.
type board struct {
	Dashboard
	x, y, row int
}

// tag marks all our dashboards and links them to each other.
const tag = "fastiov"

func newBoard(uid, title, about string, variables ...Variable) *board {
	all := append([]Variable{{Name: "datasource", Label: "Prometheus", Type: "datasource",
		Query: "prometheus"}}, variables...)
	return &board{Dashboard: Dashboard{
		UID: "fastiov-" + uid, Title: title, Description: about, Tags: []string{tag},
		GraphTooltip: 1, SchemaVersion: 39, Refresh: "10s",
		Time: TimeRange{"now-30m", "now"}, Templating: Templating{all},
		Links: []Link{{Title: "fastiov", Type: "dashboards", Tags: []string{tag}, Icon: "dashboard",
			Tooltip: "The other dashboards", AsDropdown: true, KeepTime: true}},
	}}
}

var (
	prometheusSource = Datasource{"prometheus", "${datasource}"}
	tracesSource     = Datasource{"jaeger", "${traces}"}
)

// labelled returns a variable over the values of a label; a reader may choose some or all of them.
func labelled(name, text, metric string) Variable {
	v := choice(name, text, metric, name)
	v.IncludeAll, v.AllValue, v.Multi, v.Current = true, ".*", true, &Choice{"All", "$__all"}
	return v
}

// choice returns a variable that is one of a label's values.
func choice(name, text, metric, label string) Variable {
	values := "label_values(" + metric + ", " + label + ")"
	return Variable{
		Name: name, Label: text, Type: "query", Datasource: &prometheusSource, Refresh: 2, Sort: 1,
		Query: map[string]string{"query": values, "refId": name},
	}
}

// A kind is a way in which a panel shows its queries.
type kind string

const (
	lines   kind = "timeseries"
	stacked kind = "stacked" // lines over each other, filled
	heat    kind = "heatmap"
	numbers kind = "stat"
	bars    kind = "bargauge"
	table   kind = "table"
)

// A query holds an expression and the legend of its series.
type query struct{ expr, legend string }

// panel adds a panel. Numbers, bars and tables evaluate their queries once over the whole range,
// the others along it.
func (b *board) panel(how kind, w, h int, unit, title, about string, queries ...query) *Panel {
	p := Panel{Type: string(how), Title: title, Description: about, Datasource: prometheusSource}
	p.FieldConfig = FieldConfig{
		Defaults: Field{Unit: unit, Custom: map[string]any{}}, Overrides: []struct{}{},
	}
	p.Options = map[string]any{}
	once := how == numbers || how == bars || how == table
	for i, q := range queries {
		t := Target{
			RefID: string(rune('A' + i)), Datasource: prometheusSource,
			Expr: strings.Join(strings.Fields(q.expr), " "), LegendFormat: q.legend,
		}
		t.Instant, t.Range = once, !once
		if how == table {
			t.Format = "table"
		}
		p.Targets = append(p.Targets, t)
	}
	switch how {
	case lines, stacked:
		p.Type = string(lines)
		p.Options["legend"] = map[string]any{
			"displayMode": "table", "placement": "bottom", "showLegend": true,
			"calcs": []string{"lastNotNull", "max"},
		}
		p.Options["tooltip"] = map[string]any{"mode": "multi", "sort": "desc"}
		p.FieldConfig.Defaults.Custom = map[string]any{
			"showPoints": "auto", "spanNulls": true, "fillOpacity": 0,
		}
		if how == stacked {
			p.FieldConfig.Defaults.Custom["stacking"] = map[string]any{
				"mode": "normal", "group": "A",
			}
			p.FieldConfig.Defaults.Custom["fillOpacity"] = 40
		}
	case heat:
		p.Targets[0].Format = "heatmap"
		p.Options["calculate"] = false
		p.Options["yAxis"] = map[string]any{"unit": unit}
		p.Options["color"] = map[string]any{
			"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5,
			"steps": 64,
		}
		p.Options["legend"] = map[string]any{"show": true}
	case numbers, bars:
		p.Options["reduceOptions"] = map[string]any{"calcs": []string{"lastNotNull"}}
		p.Options["orientation"] = "auto"
	}
	b.place(&p, w, h)
	return &b.Panels[len(b.Panels)-1]
}

// place puts a panel to the right of the last one, or below if there is no room.
func (b *board) place(p *Panel, w, h int) {
	if b.x+w > 24 {
		b.x, b.y, b.row = 0, b.y+b.row, 0
	}
	p.ID = len(b.Panels) + 1
	p.GridPos = GridPos{H: h, W: w, X: b.x, Y: b.y}
	b.x, b.row = b.x+w, max(b.row, h)
	b.Panels = append(b.Panels, *p)
}

// columns makes each query a column of the table; the label by joins the rows.
func (p *Panel) columns(by string) {
	names, drop := map[string]string{by: by}, map[string]bool{"Time": true}
	for i, t := range p.Targets {
		names["Value #"+t.RefID] = t.LegendFormat
		drop["Time "+strconv.Itoa(i+1)] = true
	}
	p.Transformations = []map[string]any{
		{"id": "joinByField", "options": map[string]any{"byField": by, "mode": "outer"}},
		{"id": "organize", "options": map[string]any{"excludeByName": drop, "renameByName": names}},
	}
}

// exemplars makes the first query show exemplars, which lead to traces.
func (p *Panel) exemplars() { p.Targets[0].Exemplar = true }

// The quantiles that are shown, mostly of the tail.
var quantiles = []struct{ q, name string }{{"0.5", "p50"}, {"0.9", "p90"}, {"0.99", "p99"},
	{"0.999", "p99.9"}}

// window is the time over which rates along a range are taken; whole is the range itself.
const (
	window = "$__rate_interval"
	whole  = "$__range"
)

// quantile returns a quantile of a histogram, by labels.
func quantile(q, histogram, selector, over, by string) string {
	return "histogram_quantile(" + q + ", sum by (" + strings.TrimSuffix("le, "+by, ", ") +
		") (rate(" + histogram + "_bucket" + selector + "[" + over + "])))"
}

// tail returns a query for each quantile. An empty legend becomes the quantile's name.
func tail(histogram, selector, over, by, legend string) (all []query) {
	for _, q := range quantiles {
		all = append(all, query{quantile(q.q, histogram, selector, over, by),
			strings.TrimSpace(q.name + " " + legend)})
	}
	return all
}

// Files returns what is generated, by path in the repository.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{"docs/metrics.md": []byte(MetricsPage())}
	for name, d := range All() {
		content, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return nil, err
		}
		files["dashboards/grafana/"+name] = append(content, '\n')
	}
	return files, nil
}

// All returns the dashboards, by file name.
func All() map[string]Dashboard {
	all := map[string]Dashboard{}
	for _, d := range []Dashboard{tailLatency(), oneColdStart(), vfPool(), node(), functions()} {
		all[strings.TrimPrefix(d.UID, "fastiov-")+".json"] = d
	}
	return all
}
