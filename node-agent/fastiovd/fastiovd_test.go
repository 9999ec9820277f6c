package fastiovd

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// The numbers are those of the C header: direction, size, letter and number.
func TestIoctlNumbers(t *testing.T) {
	for _, c := range []struct{ got, direction, size, number uintptr }{
		{ioctlRegister, 1, unsafe.Sizeof(register{}), 0},
		{ioctlStat, 3, unsafe.Sizeof(Stat{}), 1},
		{ioctlInstant, 1, unsafe.Sizeof(Range{}), 3},
	} {
		if want := c.direction<<30 | c.size<<16 | 0xf1<<8 | c.number; c.got != want {
			t.Errorf("%#x, not %#x", c.got, want)
		}
	}
}

// A switch is written if its value changes, and only then.
func TestTurnWritesWhatChanges(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "switch")
	for _, c := range []struct {
		before string
		on     bool
		after  string
	}{{"Y\n", true, "Y\n"}, {"N\n", false, "N\n"}, {"Y\n", false, "N"}, {"N\n", true, "Y"}} {
		if err := os.WriteFile(path, []byte(c.before), 0o644); err != nil {
			t.Fatal(err)
		}
		err := Turn(root, "switch", c.on)
		if got, _ := os.ReadFile(path); err != nil || string(got) != c.after {
			t.Errorf("%q turned %v is %q, not %q (%v)", c.before, c.on, got, c.after, err)
		}
	}
}
