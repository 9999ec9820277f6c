package beside

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnInstalledProgramBuildsNothing: it is started in the module's source, with go at hand.
func TestAnInstalledProgramBuildsNothing(t *testing.T) {
	finder := filepath.Join(t.TempDir(), "finder")
	if out, err := exec.Command("go", "build", "-o", finder, "./testdata/finder").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := exec.Command(finder).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "is missing") {
		t.Errorf("it says %q (%v)", said, err)
	}
}
