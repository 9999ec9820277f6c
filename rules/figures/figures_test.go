package figures

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCurrentFollowsTheSources(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a/x.go", "package a")
	paths := []string{"a", "absent"}
	hash, err := Hash(root, paths)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(File{Inputs: Inputs{Paths: paths, SHA256: hash}, Figures: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, "f.json", string(content))

	for _, change := range []struct {
		name, content string
		current       bool
	}{
		{"a/x_test.go", "package a", true},
		{"a/README.md", "prose", true},
		{"a/atest/server.go", "package atest", true},
		{"a/figures/b.json", "{}", true},
		{"b/other.go", "package b", true},
		{"a/x.go", "package a // changed", false},
		{"a/x.go", "package a", true},
		{"a/new.go", "package a", false},
	} {
		write(t, root, change.name, change.content)
		current, err := Current(root, "f.json")
		if err != nil || current != change.current {
			t.Errorf("after writing %s: current = %v, %v; want %v", change.name, current, err, change.current)
		}
	}
}

func TestCurrentRefusesWhatIsNoFigure(t *testing.T) {
	root := t.TempDir()
	write(t, root, "text.json", "hello")
	write(t, root, "bare.json", `{"p50": 1}`)
	for _, file := range []string{"absent.json", "text.json", "bare.json"} {
		if current, err := Current(root, file); err == nil || current {
			t.Errorf("%s: current = %v, %v; want an error", file, current, err)
		}
	}
}
