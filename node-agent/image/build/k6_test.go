package build

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without Go there is no k6, and nothing is left that could be taken for it.
func TestK6NeedsGo(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("PATH", "")
	if _, err := c.K6(t.Context()); err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("it said %v", err)
	}
	if _, built := c.HasK6(t.Context()); built {
		t.Error("it has k6")
	}
	for _, sub := range []string{"entries", "tmp"} {
		if left, _ := os.ReadDir(filepath.Join(dir, sub)); len(left) > 0 {
			t.Errorf("left in %s: %v", sub, left)
		}
	}
}
