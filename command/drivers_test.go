package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// What a VMM runs is readable for its user, and nobody's to change.
func TestReadable(t *testing.T) {
	dir := t.TempDir()
	program, firmware := filepath.Join(dir, "program"), filepath.Join(dir, "firmware")
	if err := errors.Join(os.WriteFile(program, nil, 0o700), os.WriteFile(firmware, nil, 0o600),
		os.Chmod(dir, 0o777), os.Chmod(firmware, 0o666), readable(dir)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o755, program: 0o755, firmware: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}
