package failpoint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every failpoint is listed once, and every one is hit somewhere: a name without a Hit would be a
// kill that never happens.
func TestAllAreListedAndHit(t *testing.T) {
	source, err := os.ReadFile("failpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[Name]bool{}
	for _, name := range All {
		if listed[name] {
			t.Errorf("%s is listed twice", name)
		}
		listed[name] = true
	}
	code := hits(t, "..")
	for _, m := range regexp.MustCompile(
		`(?m)^\t(\w+)\s+Name = "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		if !listed[Name(m[2])] {
			t.Errorf("%s is not in All", m[2])
		}
		if !strings.Contains(code, "failpoint.Hit(failpoint."+m[1]+")") {
			t.Errorf("nothing hits %s", m[1])
		}
	}
}

func hits(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
