package procfs

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A process keeps its start time until it has ended, reaped or not, whatever its name is.
func TestStartTicks(t *testing.T) {
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(t.TempDir(), "a) Z 1 (b")
	if err := os.Symlink(cat, named); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(named)
	words, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	heard, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	before, err := StartTicks(child.Process.Pid)
	if err != nil || before == 0 {
		t.Errorf("%d, %v", before, err)
	}
	if now, err := StartTicks(child.Process.Pid); err != nil || now != before {
		t.Errorf("%d, %v; it was %d", now, err, before)
	}
	words.Close()
	if _, err := io.ReadAll(heard); err != nil {
		t.Error(err)
	}
	for err == nil { // until it is a zombie
		_, err = StartTicks(child.Process.Pid)
	}
	if !errors.Is(err, ErrNoProcess) {
		t.Errorf("not reaped: %v", err)
	}
	_ = child.Wait()
	if _, err := StartTicks(child.Process.Pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("reaped: %v", err)
	}
}
