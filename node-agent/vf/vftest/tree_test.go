package vftest

import (
	"os"
	"strings"
	"testing"
)

// A reader of a file that is being written sees its old text or its new one, as another process
// does that finds the tree of one that was killed.
func TestFilesAreWrittenWhole(t *testing.T) {
	h := Make(t)
	texts := []string{strings.Repeat("a", 4096), strings.Repeat("b", 512)}
	if err := h.put("settings/x", texts[0]); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(h.path("settings/x")) // as it was when it was opened
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := h.put("settings/x", texts[1]); err != nil {
		t.Fatal(err)
	}
	old := make([]byte, len(texts[0])+2)
	if n, err := before.Read(old); err != nil || string(old[:n]) != texts[0]+"\n" {
		t.Errorf("the file was written over: %d bytes, %v", n, err)
	}
	if got := h.get("settings/x"); got != texts[1] {
		t.Errorf("the file has %d bytes, want %d", len(got), len(texts[1]))
	}
	if entries, err := os.ReadDir(h.Dir); err != nil || len(entries) != 4 {
		t.Errorf("the tree has %v, %v", entries, err)
	}
}
