package cni

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A note is left, taken and dropped also where the network's name is longer than a file's can be,
// and so are those of earlier plugins.
func TestNotesOfLongNames(t *testing.T) {
	long := Attachment{strings.Repeat("n", 300), strings.Repeat("c", 64), "eth0"}
	short := Attachment{"net", "c", "eth0"}
	run := t.TempDir()
	var ended []Attachment
	take := func() {
		t.Helper()
		ended = nil
		err := TakeNotes(run, func(a Attachment) { ended = append(ended, a) })
		if left, _ := os.ReadDir(notes(run)); err != nil || len(left) > 0 {
			t.Errorf("%v, and %v is left", err, left)
		}
	}
	for _, a := range []Attachment{long, short} {
		if err := leaveNote(run, a); err != nil {
			t.Fatal(err)
		}
		if take(); len(ended) != 1 || ended[0] != a {
			t.Errorf("%v ended, and not %v", ended, a)
		}
		if err := errors.Join(leaveNote(run, a), DropNote(run, a), DropNote(run, a)); err != nil {
			t.Errorf("dropping that of %v: %v", a, err)
		}
		if take(); len(ended) > 0 {
			t.Errorf("%v ended, and was dropped", ended)
		}
	}
	former := filepath.Join(notes(run), "net%2Fc%2Feth0")
	for range 2 { // the first is taken, the second dropped
		if err := os.WriteFile(former, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if ended == nil {
			if take(); len(ended) != 1 || ended[0] != short {
				t.Errorf("%v ended of a former plugin's note", ended)
			}
		} else if err := DropNote(run, short); err != nil {
			t.Error(err)
		}
	}
	if take(); len(ended) > 0 {
		t.Errorf("%v ended, and was dropped", ended)
	}
}
