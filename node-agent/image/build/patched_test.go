package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

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
		recipe: "kernel 1", pin: "none", config: []byte("C=y\n"), files: files, series: "patches/1",
	}
	const want = "a4767c0ff27323c3"
	if got := image.Hash(p.inputs()); got != want {
		t.Errorf("its key is %s, and was %s", got, want)
	}
	files["patches/1/a.patch"].Data = []byte("b")
	if image.Hash(p.inputs()) == want {
		t.Error("another patch leaves the key as it is")
	}
}

func TestPatchesAreAppliedInOrder(t *testing.T) {
	const first = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+two\n"
	const second = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-two\n+three\n"
	for _, c := range []struct{ series, want, err string }{
		{"# what it is for\n\n1.patch\n2.patch\n", "three\n", ""},
		{"2.patch\n1.patch\n", "one\n", "2.patch does not apply"},
		{"1.patch\nabsent.patch\n", "two\n", "absent.patch"},
	} {
		tree := t.TempDir()
		if err := os.WriteFile(filepath.Join(tree, "f"), []byte("one\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{"series": c.series, "1.patch": first, "2.patch": second}
		files := inSeries(all)
		err := patched{files: files, series: "patches/1"}.apply(t.Context(), tree, noSay)
		got, _ := os.ReadFile(filepath.Join(tree, "f"))
		failed := err != nil && c.err != "" && strings.Contains(err.Error(), c.err)
		if string(got) != c.want || err != nil && !failed || err == nil && c.err != "" {
			t.Errorf("%q gives %q, %v", c.series, got, err)
		}
	}
}
