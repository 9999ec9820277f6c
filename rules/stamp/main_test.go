package main

import (
	"os"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/rules/figures"
)

func TestStampedFigureIsCurrentUntilItsSourcesChange(t *testing.T) {
	t.Chdir(t.TempDir())
	const file = "bench/figures/x.json"
	if err := os.WriteFile("code.go", []byte("package code"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := stamp(strings.NewReader(`{"p50": 1}`), file, []string{"code.go"}); err != nil {
		t.Fatal(err)
	}
	if current, err := figures.Current(".", file); err != nil || !current {
		t.Errorf("fresh: %v, %v", current, err)
	}
	if err := os.WriteFile("code.go", []byte("package code\n\nvar x int"), 0o644); err != nil {
		t.Fatal(err)
	}
	if current, err := figures.Current(".", file); err != nil || current {
		t.Errorf("after a change: %v, %v", current, err)
	}
}

func TestBrokenBenchLeavesTheFigure(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("x.json", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := stamp(strings.NewReader("no VF\n"), "x.json", []string{"."}); err == nil {
		t.Error("a figure was made of no JSON")
	}
	if content, err := os.ReadFile("x.json"); err != nil || string(content) != "old" {
		t.Errorf("%q, %v", content, err)
	}
}
