package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The units pass flags that there are, and systemd takes them.
func TestTheUnitsAreSound(t *testing.T) {
	units, err := filepath.Glob("../packaging/*.service")
	if err != nil || len(units) != 2 {
		t.Fatal(units, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const program = "/usr/local/bin/fastiov"
	var copies []string
	dir := t.TempDir()
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		_, line, found := strings.Cut(string(text), "\nExecStart="+program+" ")
		line, _, _ = strings.Cut(line, "\n")
		cmd, words, err := rootCmd().Find(strings.Fields(line))
		if err != nil || !found {
			t.Fatalf("%s: %q: %v", unit, line, err)
		}
		words = words[:len(words)-1] // the variable with more of them
		if err := cmd.ParseFlags(words); err != nil {
			t.Errorf("%s: %v", unit, err)
		}
		copied := filepath.Join(dir, filepath.Base(unit))
		installed := strings.ReplaceAll(string(text), program, self)
		if err := os.WriteFile(copied, []byte(installed), 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, copied)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		missing(t, "systemd-analyze is not here to verify them; install the package systemd")
	}
	verify := exec.Command(analyze, append([]string{"verify", "--man=no"}, copies...)...)
	out, err := verify.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
