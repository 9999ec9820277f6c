package rules

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/rules/figures"
)

// A line of SPECIFICATION.md that cites a figure says behind its name, "x.json, stale: before …",
// whether it is of other sources than the present ones.
func TestPromisesCiteCurrentFigures(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "SPECIFICATION.md"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is no SPECIFICATION.md")
	}
	if err != nil {
		t.Fatal(err)
	}
	cited := regexp.MustCompile(`(bench/figures/[\w.-]+\.json)(, stale: )?`)
	for _, found := range cited.FindAllStringSubmatch(string(content), -1) {
		file, stale := found[1], found[2] != ""
		current, err := figures.Current(root, file)
		switch {
		case err != nil:
			t.Errorf("SPECIFICATION.md cites %s: %v", file, err)
		case !current && !stale:
			t.Errorf("SPECIFICATION.md cites %s, measured on other sources: measure again "+
				"(make test ONLY=full/benches) or write \", stale: \" behind it, and why", file)
		case current && stale:
			t.Errorf("SPECIFICATION.md calls %s stale, and it is not", file)
		}
	}
}

// A row of SPECIFICATION.md begins its last cell with one of the states that the page explains.
func TestPromisesSayTheirState(t *testing.T) {
	page := read(t, "SPECIFICATION.md")
	var states []string
	for _, explained := range regexp.MustCompile(`(?m)^- \*\*([a-z ]+)\*\*: `).
		FindAllStringSubmatch(page, -1) {
		states = append(states, explained[1])
	}
	said := regexp.MustCompile(`^(state|` + strings.Join(states, "|") + `)\b`)
	for i, line := range strings.Split(page, "\n") {
		cells := strings.Split(strings.TrimSuffix(line, " |"), " | ")
		state := cells[len(cells)-1]
		if strings.HasPrefix(line, "| ") && !said.MatchString(state) {
			t.Errorf("SPECIFICATION.md:%d: the state is %.40q; it begins with one of %q", i+1,
				state, states)
		}
	}
}
