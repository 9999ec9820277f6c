package figures

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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
	content, err := json.Marshal(File{
		Inputs: Inputs{Paths: paths, SHA256: hash}, Figures: json.RawMessage(`{}`),
	})
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
		{"a/x.go", "package a // changed", true},
		{"a/x.go", "//go:build other\n\npackage a", false},
		{"a/x.go", "package a", true},
		{"a/text.lua", "1", false},
	} {
		write(t, root, change.name, change.content)
		current, err := Current(root, "f.json")
		if err != nil || current != change.current {
			t.Errorf("after writing %s: current = %v, %v; want %v",
				change.name, current, err, change.current)
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

// A change that the compiler does not see, and a move, leave a figure current; any other change
// does not.
func TestGoCountsByItsSyntax(t *testing.T) {
	const source = `package a

import (
	"fmt"

	"github.com/fastiov/fastiov/b"
)

type A struct{ n []int }

func f(a ...int) { fmt.Println(a, b.C[1:], 2 > 1) }
`
	hash := func(name, content string) string {
		root := t.TempDir()
		write(t, root, name, content)
		sum, err := Hash(root, []string{"x"})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	want := hash("x/a.go", source)
	for _, same := range [][2]string{
		{"package a", "// Package a is.\npackage a"},
		{"package a", "package main"},
		{"fastiov/b", "fastiov/deep/b"},
		{"func f", "// f does.\nfunc f"},
		{"struct{ n []int }", "struct {\n\tn []int // of f\n}"},
		{"Println(a, b.C[1:], 2 > 1)", "Println(\na, b.C[1:],\n2 > 1,\n)"},
	} {
		if hash("x/moved/a.go", strings.Replace(source, same[0], same[1], 1)) != want {
			t.Errorf("%q instead of %q makes a figure stale", same[1], same[0])
		}
	}
	for _, other := range [][2]string{
		{`"fmt"`, `fmt "log"`},
		{"type A struct", "type A = struct"},
		{"b.C[1:]", "b.C[:1]"},
		{"2 > 1", "2 < 1"},
		{"2 > 1", "2 > 3"},
		{"Println(a, b.C[1:], 2 > 1)", "Println(a...)"},
		{"func f", "//go:noinline\nfunc f"},
	} {
		if hash("x/a.go", strings.Replace(source, other[0], other[1], 1)) == want {
			t.Errorf("%q instead of %q leaves a figure current", other[1], other[0])
		}
	}
	if hash("x/a.go", strings.Replace(source, "(a, b.C[1:], 2 > 1)", "(a)", 1)) ==
		hash("x/a.go", strings.Replace(source, "(a, b.C[1:], 2 > 1)", "(a...)", 1)) {
		t.Error("f(a) and f(a...) are the same")
	}
}
