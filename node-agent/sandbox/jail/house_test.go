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
	want, err := partsOf("/", []string{shell})
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
	if got, err := partsOf("/", []string{shell}); err != nil || !slices.Equal(got, want) {
		t.Errorf("with LD_LIBRARY_PATH its parts are %v, want %v (%v)", got, want, err)
	}
}

// TestAnotherRoot has the probe and what it loads in a directory, which is the root of its rooms.
func TestAnotherRoot(t *testing.T) {
	c := config(t)
	c.Root, c.Program, c.Data = t.TempDir(), "/bin/probe", []string{"/data"}
	parts, err := partsOf("/", []string{os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range parts {
		to := part
		if i == 0 {
			to = c.Program
		}
		content, err := os.ReadFile(part)
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(c.Root, to), content)
	}
	put(t, filepath.Join(c.Root, "data/bios.bin"), nil)
	h, err := Open(c)
	if err != nil {
		missing(t, err)
	}
	defer h.Close()
	s := start(t, h, "rooted", nil)
	s.expect(map[string]string{"list /data": "bios.bin", "list /bin": "probe",
		"list " + c.Root: "error: open " + c.Root + ": no such file or directory"})
	s.Close()
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestNoPathLeadsOutOfTheRoot(t *testing.T) {
	root := t.TempDir()
	put(t, filepath.Join(root, "usr/program"), nil)
	for link, target := range map[string]string{
		"inside": "usr/program", "outside": "/etc/passwd", "above": "../../../../../etc/passwd",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
		got, err := resolve(root, "/"+link)
		if (link == "inside") != (err == nil && got == "/usr/program") {
			t.Errorf("%s resolves to %q, %v", link, got, err)
		}
	}
	if got, err := resolve("/", "/proc/self/cwd"); err != nil || !filepath.IsAbs(got) {
		t.Errorf("below / it resolves to %q, %v", got, err)
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
