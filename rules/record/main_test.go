package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func put(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A record holds until something that the tests depend on changes.
func TestARecordHoldsUntilItsSourcesChange(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"go.mod":          "module m\ngo 1.26\n",
		"m.go":            "package m",
		"slow/x_test.go":  "package slow\nimport _ \"m/used\"",
		"slow/testdata/a": "1",
		"slow/README.md":  "prose",
		"used/used.go":    "package used",
		"used/u_test.go":  "package used",
		"other/other.go":  "package other",
	}
	put(t, files)
	const record = "records/slow.json"
	if said, err := run([]string{record, "3", "17", "./slow"}); err != nil {
		t.Fatal(said, err)
	}
	said, err := run([]string{"-holds", record, "./slow"})
	if err != nil || !strings.Contains(said, "3 tests passed in 17 minutes") {
		t.Fatalf("%q, %v", said, err)
	}
	if _, err := run([]string{"-holds", record, "./slow", "./other"}); err == nil {
		t.Error("it holds with another package that has such tests")
	}
	for name, held := range map[string]bool{
		"slow/x_test.go": false, "slow/testdata/a": false, "used/used.go": false, "go.mod": false,
		"versions.yaml": false, ".ci/tier/slow": false, ".ci/tier/other": true, "used/asm.s": false,
		"used/u_test.go": true,
		"other/other.go": true, "slow/README.md": true, "other.txt": true,
	} {
		put(t, map[string]string{name: files[name] + "\n"})
		if _, err := run([]string{"-holds", record, "./slow"}); (err == nil) != held {
			t.Errorf("after a change of %s: %v", name, err)
		}
		if former, had := files[name]; had {
			put(t, map[string]string{name: former})
		} else if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := run([]string{record, "2", "17", "./slow"}); err == nil {
		t.Error("fewer tests than before make a record")
	}
	if _, err := run([]string{"-holds", record, "./slow"}); err != nil {
		t.Errorf("a refused record: %v", err)
	}
}
