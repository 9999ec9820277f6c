package kernelmod_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	kernelmod "github.com/fastiov/fastiov/kernel-mod"
)

const patches = "patches/6.12"

// bins lists the folders of the patches in the order in which they may follow each other: fixes of
// Linux itself apply without the rest, and nothing rests on what is for this repository alone.
var bins = []string{"upstream", "pending", "local"}

// series returns the names in the series.
func series(t *testing.T) (names []string) {
	t.Helper()
	for line := range strings.Lines(content(t, "series")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := fs.ReadFile(kernelmod.Files, path.Join(patches, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEveryPatchIsInTheSeries(t *testing.T) {
	named := series(t)
	last := 0
	for i, name := range named {
		bin := slices.Index(bins, path.Dir(name))
		if bin < 0 {
			t.Errorf("%s: the folders are %q", name, bins)
		} else if bin < last {
			t.Errorf("%s comes after a patch of %s", name, bins[last])
		}
		last = max(last, bin)
		if slices.Contains(named[:i], name) {
			t.Errorf("%s is named twice", name)
		}
		content(t, name)
	}
	err := fs.WalkDir(kernelmod.Files, patches, func(file string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(file, patches+"/")
		if err == nil && strings.HasSuffix(name, ".patch") && !slices.Contains(named, name) {
			t.Errorf("%s is not in the series", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFixesSayWhatTheyFix: a patch that is for the stable kernels names the commit at fault.
func TestFixesSayWhatTheyFix(t *testing.T) {
	fixes := regexp.MustCompile(`(?m)^Fixes: [0-9a-f]{12} \("[^"]+"\)$`)
	stable := regexp.MustCompile(`(?m)^Cc: <?stable@vger\.kernel\.org>?$`)
	for _, name := range series(t) {
		if path.Dir(name) != "upstream" {
			continue
		}
		message, _, _ := strings.Cut(content(t, name), "\n---\n")
		if !fixes.MatchString(message) || !stable.MatchString(message) {
			t.Errorf("%s needs a line Fixes: and a line Cc: stable@vger.kernel.org", name)
		}
	}
}

// TestThePatchesAreListed compares the table of PATCHES.md with the series.
func TestThePatchesAreListed(t *testing.T) {
	var listed []string
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(content(t, "PATCHES.md"), -1) {
		listed = append(listed, m[1])
	}
	if named := series(t); !slices.Equal(listed, named) {
		t.Errorf("PATCHES.md lists\n  %s\nand the series is\n  %s",
			strings.Join(listed, "\n  "), strings.Join(named, "\n  "))
	}
}

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
