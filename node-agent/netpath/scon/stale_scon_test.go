//go:build scon

package scon

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/fastiov/fastiov"
)

// The object that is committed is what its source compiles to.
func TestTheObjectIsOfItsSource(t *testing.T) {
	clang := "clang-" + string(regexp.MustCompile(`(?m)^clang: (\d+)$`).FindSubmatch(
		fastiov.VersionsYAML)[1])
	if _, err := exec.LookPath(clang); err != nil {
		t.Skipf("needs %s, and llvm and libbpf-dev", clang)
	}
	dir := t.TempDir()
	if out, err := exec.Command("./generate", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"program_bpfel.go", "program_bpfel.o"} {
		is, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		should, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(is, should) {
			t.Errorf("%s is not what bpf/ compiles to; run go generate and commit it", name)
		}
	}
}
