package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// changing returns a patch of one line of a file.
func changing(file, from, to string) string {
	return fmt.Sprintf("--- a/%[1]s\n+++ b/%[1]s\n@@ -1 +1 @@\n-%s\n+%s\n", file, from, to)
}

// sourceDeb makes a package of the source, as Debian's is.
func sourceDeb(t *testing.T, files map[string]string) deb {
	t.Helper()
	for _, program := range []string{"dpkg-deb", "xz", "patch"} {
		if _, err := lookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, kernelSource, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const pack = `set -e; cd "$1"; mkdir -p deb/DEBIAN deb/usr/src; chmod 755 deb deb/DEBIAN
		printf 'Package: %s\nVersion: 2\nArchitecture: all\nMaintainer: a\nDescription: b\n' \
			"$2" >deb/DEBIAN/control
		tar -cJf "deb/usr/src/$2.tar.xz" "$2"; dpkg-deb --root-owner-group --build deb source.deb`
	if out, err := exec.Command("bash", "-c", pack, "pack", dir, kernelSource).
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return deb{kernelSource, "2", filepath.Join(dir, "source.deb")}
}

// TestANewerSourceIsTried: each patch is tried, whatever becomes of the others, and what does not
// apply is named.
func TestANewerSourceIsTried(t *testing.T) {
	source := sourceDeb(t, map[string]string{
		"mm/a.c": "one\n", "mm/b.c": "new\n", "mm/c.c": "three\n", "mm/d.c": "one\n",
		"x.c": "one\n",
	})
	p := patched{source: kernelSource, series: "patches/1", files: inSeries(map[string]string{
		"series": "1\n2\n3\n4\n5\n6\n",
		"1":      changing("mm/a.c", "one", "two"),
		"2":      "why\n\n" + changing("mm/b.c", "old", "two") + changing("mm/d.c", "one", "two"),
		"3":      "why\n\n" + changing("mm/gone.c", "one", "two"),
		"4":      changing("mm/c.c", "two", "three"),
		"5":      changing("mm/d.c", "two", "three"), // as the second left it
		"6":      "--- /dev/null\n+++ b/mm/a.c\n@@ -0,0 +1 @@\n+new\n",
		"7":      changing("x.c", "one", "two"), // not in the series
	})}
	tree := t.TempDir()
	if err := p.unpackChanged(t.Context(), tree, source); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tree, "x.c")); err == nil {
		t.Error("a file that no patch of the series changes was unpacked")
	}
	got, err := p.try(t.Context(), tree)
	want := []TriedPatch{
		{"1", nil},
		{"2", []string{"mm/b.c:1"}},
		{"3", []string{"mm/gone.c is not there"}},
		{"4", []string{"mm/c.c has it already"}},
		{"5", nil},
		{"6", []string{"mm/a.c is there already"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	if n := (Trial{Patches: got}).Rejected(); n != 4 {
		t.Errorf("%d patches do not apply, want 4", n)
	}
}

// TestAnotherVersionIsTold: if the mirror lacks the pinned source, the build says what it takes.
func TestAnotherVersionIsTold(t *testing.T) {
	source := sourceDeb(t, map[string]string{"mm/a.c": "one\n"})
	for version, warns := range map[string]bool{"1": true, "2": false} {
		var said strings.Builder
		say := func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
		tree := filepath.Join(t.TempDir(), "tree")
		p := patched{source: kernelSource, version: version}
		err := p.unpackDeb(t.Context(), tree, say, source)
		content, _ := os.ReadFile(filepath.Join(tree, "mm/a.c"))
		const warning = "warning: the mirror no longer has linux-source-6.12 1; taking 2\n"
		if err != nil || string(content) != "one\n" ||
			strings.Contains(said.String(), warning) != warns {
			t.Errorf("pinned %s: %v, %q, said %q", version, err, content, said.String())
		}
	}
}
