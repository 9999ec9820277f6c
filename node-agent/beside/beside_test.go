package beside

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnInstalledProgramBuildsNothing starts one in the module's source, with go available.
func TestAnInstalledProgramBuildsNothing(t *testing.T) {
	finder := filepath.Join(t.TempDir(), "finder")
	if out, err := exec.Command("go", "build", "-o", finder,
		"./testdata/finder").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := exec.Command(finder).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "is missing") {
		t.Errorf("it says %q (%v)", said, err)
	}
}
