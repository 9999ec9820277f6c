package jail

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheEnvironmentFindsNoLibraries(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		missing(t, err)
	}
	want, err := partsOf([]string{shell})
	if err != nil {
		t.Fatal(err)
	}
	libc := slices.IndexFunc(want,
		func(part string) bool { return strings.HasPrefix(filepath.Base(part), "libc.") })
	if libc < 0 {
		t.Skipf("%s loads no libc: %v", shell, want)
	}
	other := t.TempDir()
	content, err := os.ReadFile(want[libc])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, filepath.Base(want[libc])),
		content, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", other)
	if got, err := partsOf([]string{shell}); err != nil || !slices.Equal(got, want) {
		t.Errorf("with LD_LIBRARY_PATH its parts are %v, want %v (%v)", got, want, err)
	}
}

func TestDataAreWhereTheyAreAskedFor(t *testing.T) {
	dir := t.TempDir()
	there, link := filepath.Join(dir, "there"), filepath.Join(dir, "link")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(there, "bios.bin"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("there", link); err != nil {
		t.Fatal(err)
	}
	c := config(t)
	c.Data = []string{link, filepath.Join(link, "bios.bin")}
	h, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := start(t, h, "data", nil)
	s.expect(map[string]string{"list " + link: "bios.bin", "list " + there: "bios.bin"})
	s.Close()
}
