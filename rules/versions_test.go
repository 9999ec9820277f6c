package rules

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// A version that is pinned in versions.yaml is read from there: no other source may repeat it.
func TestVersionsStandInOnePlace(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "versions.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is no versions.yaml")
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	pins := pinned(&document)
	if len(pins) == 0 {
		t.Fatal("versions.yaml pins nothing")
	}
	code := []string{".go", ".sh", ".py", ".js", ".c", ".h"}
	sources(t, func(path string) {
		script := strings.HasPrefix(path, ".ci/") || filepath.Base(path) == "Makefile"
		if !script && !slices.Contains(code, filepath.Ext(path)) ||
			strings.HasSuffix(path, "_test.go") {
			return
		}
		text := read(t, path)
		for _, pin := range pins {
			if regexp.MustCompile(`(^|[^\w.])` +
				regexp.QuoteMeta(pin) + `($|[^\w.])`).MatchString(text) {
				t.Errorf("%s names the version %s; read it from versions.yaml", path, pin)
			}
		}
	})
}

// Images are made of what the machine's own apt, or debootstrap, has Debian from.
func TestTheTreeNamesNoPackageServer(t *testing.T) {
	server := regexp.MustCompile(`//[\w.-]*(debian\.org|ubuntu\.com)/?(debian|ubuntu|$|["'\s])`)
	sources(t, func(path string) {
		if found := server.FindString(read(t, path)); found != "" {
			t.Errorf("%s names the package server %s; findArchive in node-agent/image/build "+
				"returns the machine's", path, strings.TrimSpace(found))
		}
	})
}

// pinned returns the scalars that are versions: numbers with at least two dots, or Debian's with a
// revision.
func pinned(node *yaml.Node) []string {
	if node.Kind == yaml.ScalarNode {
		if regexp.MustCompile(`^v?(\d+:)?\d+\.\d+(\.\d+|[+~-])\S*$`).MatchString(node.Value) {
			return []string{node.Value}
		}
		return nil
	}
	var pins []string
	for _, child := range node.Content {
		pins = append(pins, pinned(child)...)
	}
	return pins
}
