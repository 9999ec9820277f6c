package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
)

func inSeries(files map[string]string) fstest.MapFS {
	fs := fstest.MapFS{}
	for name, content := range files {
		fs["patches/1/"+name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fs
}

// TestTheKeyOfPatchedSourceStays: a kernel that was built is found again by a later fastiov, unless
// its own inputs changed.
func TestTheKeyOfPatchedSourceStays(t *testing.T) {
	files := inSeries(map[string]string{"series": "a.patch\n", "a.patch": "a"})
	p := patched{
		recipe: "kernel 1", config: []byte("C=y\n"), files: files, series: "patches/1",
	}
	const want = "a4767c0ff27323c3"
	if got := image.Hash(p.inputs()); got != want {
		t.Errorf("its key is %s, and was %s", got, want)
	}
	files["patches/1/README.md"] = &fstest.MapFile{Data: []byte("what the patches are for\n")}
	if got := image.Hash(p.inputs()); got != want {
		t.Errorf("with a file that the series does not name its key is %s", got)
	}
	change := func(what string, other patched) {
		t.Helper()
		if image.Hash(other.inputs()) == want {
			t.Errorf("another %s leaves the key as it is", what)
		}
	}
	newer := p
	newer.version = "2"
	change("version", newer)
	files["patches/1/a.patch"].Data = []byte("b")
	change("patch", p)
	moved := inSeries(map[string]string{"series": "bin/a.patch\n", "bin/a.patch": "a"})
	p.files = moved
	change("folder", p)
}

func TestPatchesAreAppliedInOrder(t *testing.T) {
	const first = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+two\n"
	const second = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-two\n+three\n"
	for _, c := range []struct{ series, want, err string }{
		{"# what it is for\n\nupstream/1.patch\nlocal/2.patch\n", "three\n", ""},
		{"local/2.patch\nupstream/1.patch\n", "one\n", "local/2.patch does not apply: f:1"},
		{"upstream/1.patch\nabsent.patch\n", "two\n", "absent.patch"},
	} {
		tree := t.TempDir()
		if err := os.WriteFile(filepath.Join(tree, "f"), []byte("one\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{
			"series": c.series, "upstream/1.patch": first, "local/2.patch": second,
		}
		files := inSeries(all)
		err := patched{files: files, series: "patches/1"}.apply(t.Context(), tree, noSay)
		got, _ := os.ReadFile(filepath.Join(tree, "f"))
		failed := err != nil && c.err != "" && strings.Contains(err.Error(), c.err)
		if string(got) != c.want || err != nil && !failed || err == nil && c.err != "" {
			t.Errorf("%q gives %q, %v", c.series, got, err)
		}
	}
}

// A disk that would be full half-way through a compilation is refused before.
func TestACompilationNeedsRoom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3g"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	p := patched{files: inSeries(map[string]string{"series": ""}), series: "patches/1"}
	_, err := open(t, dir).patched(t.Context(), "kernel", p)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "it may take 4096 MB") {
		t.Errorf("with 3 GiB free: %v", err)
	}
}

// A compiler may print any line, and is read to its end.
func TestALongLineHoldsNoCompilerUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, c := range []struct {
		bytes string
		want  string
	}{{"200000", "error: at the end"}, {"3000000", "too long"}} {
		script := "head -c " + c.bytes + " /dev/zero | tr '\\0' x; echo;" +
			" echo error: at the end; exit 1"
		err := runCompiler(command(ctx, "sh", "-c", script), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || ctx.Err() != nil {
			t.Errorf("a line of %s bytes: %v", c.bytes, err)
		}
	}
}
