package rules

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// TestDocumentsAreNarrow: a document has one sentence on a line, and a sentence that is too long
// for a line is hard to read. The rows of tables and the lines of code blocks may be longer.
func TestDocumentsAreNarrow(t *testing.T) {
	const most = 160
	sources(t, func(path string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		code, number := false, 0
		for line := range strings.Lines(read(t, path)) {
			number++
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
			if code || strings.HasPrefix(line, "|") || columns <= most {
				continue
			}
			t.Errorf("%s:%d has %d columns, at most %d: make two sentences of it, one on each line",
				path, number, columns, most)
		}
	})
}

// TestEveryStageIsExplained: docs/observability.md has a table of them, in their order.
func TestEveryStageIsExplained(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| [^|]+ \\|$").
		FindAllStringSubmatch(read(t, "docs/observability.md"), -1)
	var explained []timeline.Stage
	for _, row := range rows {
		explained = append(explained, timeline.Stage(row[1]))
	}
	if !slices.Equal(explained, timeline.Order) {
		t.Errorf("docs/observability.md explains %v; the stages are %v", explained, timeline.Order)
	}
}

// TestEveryAlertHasARemedy: whoever is woken by an alert finds it in docs/troubleshooting.md.
func TestEveryAlertHasARemedy(t *testing.T) {
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).
		FindAllStringSubmatch(read(t, "dashboards/prometheus/alerts.yml"), -1)
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	page := read(t, "docs/troubleshooting.md")
	for _, alert := range alerts {
		if !strings.Contains(page, "| `"+alert[1]+"`") {
			t.Errorf("docs/troubleshooting.md has no row for the alert %s", alert[1])
		}
	}
}

// TestAMapOfFilesHasThemAll: a doc.go may say in a table which file of its package holds what. A
// reader takes what is not in it for nothing.
func TestAMapOfFilesHasThemAll(t *testing.T) {
	row := regexp.MustCompile(`(?m)^//\t\w+\.go +\S`)
	maps := map[string]string{}
	sources(t, func(path string) {
		if text := read(t, path); filepath.Base(path) == "doc.go" && row.MatchString(text) {
			maps[filepath.Dir(path)] = text
		}
	})
	if len(maps) == 0 {
		t.Fatal("there are no such tables")
	}
	sources(t, func(path string) {
		file := filepath.Base(path)
		text, has := maps[filepath.Dir(path)]
		if has && filepath.Ext(file) == ".go" && file != "doc.go" &&
			!strings.HasSuffix(file, "_test.go") && !strings.Contains(text, file) {
			t.Errorf("%s is not in the table of its package's doc.go", path)
		}
	})
}
