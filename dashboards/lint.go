package dashboards

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Lint returns the mistakes in the dashboards, one line each. Whether a query returns data is
// tested elsewhere.
func Lint(all map[string]Dashboard) []string {
	var l lint
	uids, series := map[string]string{}, allSeries()
	for _, file := range slices.Sorted(maps.Keys(all)) {
		d := all[file]
		l.at = file
		if other := uids[d.UID]; other != "" || d.UID == "" {
			l.say("uid %q is not its own (%s)", d.UID, other)
		}
		uids[d.UID] = file
		if d.Title == "" || d.Description == "" {
			l.say("no title or no description")
		}
		l.variables(&d)
		l.layout(&d)
		ids, titles := map[int]bool{}, map[string]bool{}
		for _, p := range d.Panels {
			l.at = fmt.Sprintf("%s, panel %d %q", file, p.ID, p.Title)
			if ids[p.ID] || p.ID == 0 {
				l.say("its id is not its own")
			}
			if titles[p.Title] || p.Title == "" {
				l.say("its title is not its own")
			}
			ids[p.ID], titles[p.Title] = true, true
			l.panel(&p, series)
		}
	}
	return l.said
}

type lint struct {
	at   string
	said []string
}

func (l *lint) say(format string, args ...any) {
	l.said = append(l.said, l.at+": "+fmt.Sprintf(format, args...))
}

func (l *lint) panel(p *Panel, series map[string]Metric) {
	if p.Description == "" {
		l.say("it has no description")
	}
	if p.FieldConfig.Defaults.Unit == "" {
		l.say("it has no unit")
	}
	if len(p.Targets) == 0 {
		l.say("it asks nothing")
	}
	refs := map[string]bool{}
	for _, t := range p.Targets {
		if refs[t.RefID] || t.RefID == "" {
			l.say("query %q: its refId is not its own", t.RefID)
		}
		refs[t.RefID] = true
		if !strings.HasPrefix(t.Datasource.UID, "${") || t.Datasource != p.Datasource {
			l.say("query %s: its data source %q is no variable, or not the panel's", t.RefID,
				t.Datasource.UID)
		}
		if t.Datasource.Type != prometheusSource.Type {
			if t.Query == "" && t.Service == "" {
				l.say("query %s is empty", t.RefID)
			}
			continue
		}
		l.expression(&t, series)
	}
}

var (
	ours     = regexp.MustCompile(`\bfastiov_[a-z_]+\b(?:\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+) *(=~|!~|!=|=) *"([^"]*)"`)
	ofRange  = regexp.MustCompile(`\[([^\]]+)\]`)
	variable = regexp.MustCompile(`\$\{?(\w+)\}?`)
)

func (l *lint) expression(t *Target, series map[string]Metric) {
	if t.Expr == "" {
		l.say("query %s is empty", t.RefID)
	}
	if t.LegendFormat == "" {
		l.say("query %s has no legend", t.RefID)
	}
	for _, said := range misnamed(t.Expr, series) {
		l.say("query %s: %s", t.RefID, said)
	}
	inPieces := strings.Contains(t.Expr, "["+whole+":") // the range, piece by piece
	for _, over := range ofRange.FindAllStringSubmatch(t.Expr, -1) {
		if t.Range && over[1] == whole || t.Instant && over[1] == window && !inPieces {
			l.say("query %s: along the range over %s, once over %s", t.RefID, window, whole)
		}
	}
}

// allSeries returns the metric of each series, by the series' name.
func allSeries() map[string]Metric {
	all := map[string]Metric{}
	for _, m := range Metrics() {
		if m.Type != "histogram" {
			all[m.Name] = m
			continue
		}
		for _, of := range []string{"_bucket", "_sum", "_count"} {
			all[m.Name+of] = m
		}
	}
	return all
}

// misnamed returns what an expression asks for that is never there: a series, a label, or a value
// of one that has only so many.
func misnamed(expr string, series map[string]Metric) (said []string) {
	for _, one := range ours.FindAllString(expr, -1) {
		name, selector, _ := strings.Cut(one, "{")
		m, known := series[name]
		if !known {
			said = append(said, name+" is asked for, which nobody counts")
			continue
		}
		for _, by := range matcher.FindAllStringSubmatch(selector, -1) {
			label, how, value := by[1], by[2], by[3]
			if !slices.Contains(append(m.Labels, "instance", "job", "le"), label) {
				said = append(said, fmt.Sprintf("%s has no label %s", name, label))
			}
			all, _ := Values(m.Name, label)
			if all == nil || strings.Contains(value, "$") {
				continue
			}
			wanted := []string{value}
			if strings.HasSuffix(how, "~") {
				wanted = strings.Split(value, "|")
			}
			for _, v := range wanted {
				if !slices.Contains(all, v) {
					said = append(said, fmt.Sprintf("%s never has %s=%q", name, label, v))
				}
			}
		}
	}
	return said
}

// variables finds variables that are used but not defined, or defined but not used.
func (l *lint) variables(d *Dashboard) {
	used, there := map[string]bool{}, map[string]bool{
		"__rate_interval": true, "__interval": true, "__range": true, "__all": true,
	}
	note := func(text string) {
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			used[m[1]] = true
		}
	}
	for _, v := range d.Templating.List {
		if there[v.Name] {
			l.say("variable %s is there twice", v.Name)
		}
		there[v.Name] = true
		if v.Type == "query" && (v.Datasource == nil || *v.Datasource != prometheusSource) {
			l.say("variable %s asks no data source that can be chosen", v.Name)
		}
	}
	for _, p := range d.Panels {
		note(p.Datasource.UID)
		for _, t := range p.Targets {
			note(t.Expr + " " + t.Query)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !there[name] {
			l.say("variable %s is used and not there", name)
		}
	}
	for _, v := range d.Templating.List {
		if !used[v.Name] {
			l.say("variable %s is there and not used", v.Name)
		}
	}
}

// layout finds panels that overlap or leave the grid.
func (l *lint) layout(d *Dashboard) {
	for i, p := range d.Panels {
		a := p.GridPos
		if a.W < 1 || a.H < 1 || a.X < 0 || a.X+a.W > 24 {
			l.say("panel %q is beside the grid", p.Title)
		}
		for _, other := range d.Panels[:i] {
			b := other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				l.say("panel %q lies over %q", p.Title, other.Title)
			}
		}
	}
}
