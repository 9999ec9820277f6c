package kernelmod_test

import (
	"os"
	"os/exec"
	"testing"

	kernelmod "github.com/fastiov/fastiov/kernel-mod"
	"github.com/fastiov/fastiov/rules/series"
)

func TestThePatches(t *testing.T) { series.Check(t, kernelmod.Files, "patches/6.12") }

// makeReproducers compiles the programs of the directory upstream into dir, without a warning.
func makeReproducers(t *testing.T, dir string) {
	t.Helper()
	for _, tool := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("FASTIOV_CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	make := exec.Command("make", "-s", "-C", "upstream", "CC=gcc", "OUTPUT="+dir)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestReproducersCompile(t *testing.T) { makeReproducers(t, t.TempDir()) }
