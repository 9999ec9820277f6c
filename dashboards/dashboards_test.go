package dashboards

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", name)); err != nil ||
			string(got) != string(want) {
			t.Errorf("%s is not what the code makes; run make generate and commit it (%v)",
				name, err)
		}
	}
	there, err := filepath.Glob("grafana/*.json")
	if err != nil || len(there) != len(All()) {
		t.Errorf("there are %q, %v; what no code makes must go", there, err)
	}
}

func TestDashboardsHaveNoLint(t *testing.T) {
	for _, said := range Lint(All()) {
		t.Error(said)
	}
}

// Each rule of the lint finds the mistake that it was made for.
func TestLintFindsWhatIsWrong(t *testing.T) {
	for want, spoil := range map[string]func(d *Dashboard){
		"uid":                      func(d *Dashboard) { d.UID = "fastiov-node" },
		"no title or no desc":      func(d *Dashboard) { d.Description = "" },
		"its id is not its own":    func(d *Dashboard) { d.Panels[1].ID = d.Panels[0].ID },
		"its title is not its own": func(d *Dashboard) { d.Panels[1].Title = d.Panels[0].Title },
		"it has no description":    func(d *Dashboard) { d.Panels[2].Description = "" },
		"it has no unit": func(d *Dashboard) {
			d.Panels[2].FieldConfig.Defaults.Unit = ""
		},
		"it asks nothing":      func(d *Dashboard) { d.Panels[2].Targets = nil },
		"refId is not its own": func(d *Dashboard) { d.Panels[0].Targets[1].RefID = "A" },
		"is no variable": func(d *Dashboard) {
			d.Panels[2].Targets[0].Datasource.UID = "prometheus"
		},
		"is empty": func(d *Dashboard) { d.Panels[2].Targets[0].Expr = "" },
		"has no legend": func(d *Dashboard) {
			d.Panels[2].Targets[0].LegendFormat = ""
		},
		"which nobody counts": func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = "sum(fastiov_nonsense_total)"
		},
		"fastiov_node_vfs_quarantined is asked": func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = "fastiov_node_vfs_quarantined"
		},
		"fastiov_cold_start_seconds is asked": func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = "fastiov_cold_start_seconds"
		},
		"fastiov_node_vfs has no label phase": func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = `fastiov_node_vfs{instance="a", phase="idle"}`
		},
		`never has state="quarantine"`: func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = `fastiov_node_vfs{state!="quarantine"} > 0`
		},
		`_count never has start="stem"`: func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = `fastiov_activation_seconds_count{start=~"cold|stem"}`
		},
		"once over": func(d *Dashboard) {
			d.Panels[1].Targets[0].Expr = "rate(up[$__rate_interval])"
		},
		"nobody is used and not": func(d *Dashboard) {
			d.Panels[2].Targets[0].Expr = `up{a="$nobody"}`
		},
		"extra is there and not": func(d *Dashboard) {
			d.Templating.List = append(d.Templating.List, Variable{Name: "extra"})
		},
		"is there twice": func(d *Dashboard) {
			d.Templating.List = append(d.Templating.List, d.Templating.List[0])
		},
		"asks no data source that": func(d *Dashboard) {
			d.Templating.List[1].Datasource = &Datasource{"prometheus", "x"}
		},
		"is beside the grid": func(d *Dashboard) { d.Panels[2].GridPos.X = 23 },
		`lies over "Cold starts in`: func(d *Dashboard) {
			d.Panels[1].GridPos = d.Panels[0].GridPos
		},
	} {
		all := All()
		d := all["tail.json"]
		spoil(&d)
		all["tail.json"] = d
		said := Lint(all)
		if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("lint does not find %q, but %q", want, said)
		}
	}
}

// A VF's address is its node's: nodes alike have the same ones, which no panel adds up.
func TestNoPanelMixesTheVFsOfNodes(t *testing.T) {
	for _, p := range vfPool().Panels {
		for _, q := range p.Targets {
			joined := strings.Contains(q.Expr, `"instance", "vf"`)
			named := strings.Contains(q.LegendFormat, "{{instance}}")
			if strings.Contains(q.Expr, "by (vf)") && !joined ||
				strings.Contains(q.LegendFormat, "{{vf}}") && !named {
				t.Errorf("%s: %s, %q", p.Title, q.Expr, q.LegendFormat)
			}
		}
	}
}

// Names and units of metrics follow Prometheus' conventions, and every label has a documented
// bound.
func TestMetricsAreNamedAndBounded(t *testing.T) {
	name := regexp.MustCompile(`^fastiov_(node_|pool_)?[a-z_]+$`)
	reserved := []string{"job", "instance", "le", "quantile"}
	for _, m := range Metrics() {
		if !name.MatchString(m.Name) || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: its name or its help (%q) is not like the others", m.Name, m.Help)
		}
		if (m.Type == "counter") != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Type)
		}
		if m.Type == "histogram" && m.Unit == "" {
			t.Errorf("%s has no unit", m.Name)
		}
		if regexp.MustCompile(`_(ms|milliseconds|us|kb|mb|mib|percent)(_|$)`).MatchString(m.Name) {
			t.Errorf("%s is not in a base unit", m.Name)
		}
		for _, label := range m.Labels {
			if all, bound := Values(m.Name, label); len(all) == 0 && bound == "" {
				t.Errorf("%s: nothing bounds its label %s; say in catalog.go what does",
					m.Name, label)
			}
			if slices.Contains(reserved, label) {
				t.Errorf("%s: the label %s is Prometheus' own", m.Name, label)
			}
		}
	}
}

// promtool tests the rules and checks the files that Prometheus reads.
func TestRulesSpeakWhenTheyShould(t *testing.T) {
	needPromtool(t)
	for _, args := range [][]string{{"check", "config", "prometheus.yml"},
		{"check", "rules", "--lint-fatal", "recording.yml", "alerts.yml"},
		{"test", "rules", "rules_test.yml"}} {
		check := exec.Command("promtool", args...)
		check.Dir = "prometheus"
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests, err := os.ReadFile("prometheus/rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"recording.yml", "alerts.yml"} {
		rules, err := os.ReadFile("prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(
			`(?m)^ +- (?:record|alert): (\S+)$`).FindAllStringSubmatch(string(rules), -1) {
			if !strings.Contains(string(tests), m[1]) {
				t.Errorf("%s has no test in rules_test.yml", m[1])
			}
		}
	}
}

// Rules ask only for series, labels and values that there are.
func TestRulesAskForWhatThereIs(t *testing.T) {
	for _, said := range misnamed(ruleText(t), allSeries()) {
		t.Errorf("in a rule %s", said)
	}
}

// The versions of one process, before and after it was upgraded, are told apart, and neither is
// credited with the other's starts.
func TestAnUpgradedProcessIsTwoVersions(t *testing.T) {
	needPromtool(t)
	asked := func(version string) string {
		expr := versions()[0].expr
		if version == "2" {
			expr = versions()[1].expr
		}
		return strings.NewReplacer("$before", "1", "$after", "2", "$sandbox", ".*", "$netpath",
			".*", "$fastiov", ".*", whole, "20m", window, "1m", "$__interval", "30s", "\n", " ",
			"\t", "").Replace(expr)
	}
	file := filepath.Join(t.TempDir(), "versions.yml")
	rules := `evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {series: 'fastiov_cold_start_seconds_bucket{le="0.2",instance="a",job="b"}', values: '0+9x39 0x40'}
      - {series: 'fastiov_cold_start_seconds_bucket{le="0.4",instance="a",job="b"}', values: '0+9x39 0+9x40'}
      - {series: 'fastiov_cold_start_seconds_bucket{le="+Inf",instance="a",job="b"}', values: '0+9x39 0+9x40'}
      - {series: 'fastiov_build_info{version="1",instance="a",job="b"}', values: '1x39 stale'}
      - {series: 'fastiov_build_info{version="2",instance="a",job="b"}', values: '_x40 1x40'}
    promql_expr_test:
      - expr: 'round(` + asked("1") + `, 0.001)'
        eval_time: 20m
        exp_samples: [{labels: '{version="1"}', value: 0.1}]
      - expr: 'round(` + asked("2") + `, 0.001)'
        eval_time: 20m
        exp_samples: [{labels: '{version="2"}', value: 0.3}]
`
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func needPromtool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no promtool here; install the package prometheus")
	}
}

// ruleText returns the rules' expressions, without the series that rules themselves record.
func ruleText(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, file := range []string{"recording.yml", "alerts.yml"} {
		rules, err := os.ReadFile("prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(regexp.MustCompile(
			`\S+:\S+:\S+|(?m)^ +- record:.*$`).ReplaceAllString(string(rules), ""))
	}
	return b.String()
}

// Grafana's own types accept the dashboards, and have the version that docker-compose.yml runs.
// They come from npm, in the folder that FASTIOV_TEST_GRAFANA_TYPES names. `make test
// ONLY=full/dashboards` sets it up.
func TestGrafanasTypesTakeTheDashboards(t *testing.T) {
	wanted, err := os.ReadFile("testdata/grafana/package.json")
	if err != nil {
		t.Fatal(err)
	}
	of := regexp.MustCompile(`grafana/schema": "(.*)"`).FindSubmatch(wanted)
	if of == nil || !strings.Contains(string(fastiov.VersionsYAML),
		"grafana/grafana: "+string(of[1])+"\n") {
		t.Errorf("testdata/grafana is of another Grafana (%q) than versions.yaml", of)
	}
	types := os.Getenv("FASTIOV_TEST_GRAFANA_TYPES")
	if types == "" {
		t.Skip("needs Grafana's types from npm; make test ONLY=full/dashboards gets them")
	}
	files, err := filepath.Glob("grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i, file := range files {
		if files[i], err = filepath.Abs(file); err != nil {
			t.Fatal(err)
		}
	}
	check := exec.Command("node", append([]string{filepath.Join(types, "check.js")}, files...)...)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
