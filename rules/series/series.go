// Package series checks a series of patches: its files name the same patches in the same order, and
// each patch says what somebody who gets it has to know.
package series

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bins lists the folders of patches in the order in which they may follow each other: fixes of the
// program itself apply without the rest, and nothing rests on what is for this repository alone.
var bins = []string{"upstream", "pending", "local"}

// Check checks the series in the directory dir of files: the file series, which orders the patches,
// PATCHES.md, which lists them, and the patches.
func Check(t *testing.T, files fs.FS, dir string) {
	s := series{files, dir}
	t.Run("every patch is in the series", s.isWhole)
	t.Run("PATCHES.md lists the patches", s.isListed)
	t.Run("messages say why, and how it was tested", s.isExplained)
}

type series struct {
	files fs.FS
	dir   string
}

// names returns the names in the series.
func (s series) names(t *testing.T) (names []string) {
	t.Helper()
	for line := range strings.Lines(s.content(t, "series")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s/series names no patch", s.dir)
	}
	return names
}

func (s series) content(t *testing.T, name string) string {
	t.Helper()
	b, err := fs.ReadFile(s.files, path.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (s series) isWhole(t *testing.T) {
	named := s.names(t)
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
		s.content(t, name)
	}
	err := fs.WalkDir(s.files, s.dir, func(file string, _ fs.DirEntry, err error) error {
		name := strings.TrimPrefix(file, s.dir+"/")
		if err == nil && strings.HasSuffix(name, ".patch") && !slices.Contains(named, name) {
			t.Errorf("%s is not in the series", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| [^|]+ \\|$")

func (s series) isListed(t *testing.T) {
	var listed []string
	for _, m := range row.FindAllStringSubmatch(s.content(t, "PATCHES.md"), -1) {
		listed = append(listed, m[1])
	}
	if named := s.names(t); !slices.Equal(listed, named) {
		t.Errorf("PATCHES.md lists\n  %s\nand the series is\n  %s",
			strings.Join(listed, "\n  "), strings.Join(named, "\n  "))
	}
}

// What a message has, beginning with what `git am` needs.
var (
	parts = []*regexp.Regexp{
		regexp.MustCompile(`^From [0-9a-f]{40} Mon Sep 17 00:00:00 2001\nFrom: .+\nDate: .+\n` +
			`Subject: \[PATCH\] .+\n`),
		regexp.MustCompile(`(?m)^Why: `),
		regexp.MustCompile(`(?m)^Upstream status: `),
		regexp.MustCompile(`(?m)^How tested: `),
		regexp.MustCompile(`(?m)^Signed-off-by: .+$`),
	}
	// A patch that is for stable releases too names the commit at fault.
	fixParts = []*regexp.Regexp{
		regexp.MustCompile(`(?m)^Fixes: [0-9a-f]{12} \("[^"]+"\)$`),
		regexp.MustCompile(`(?m)^Cc: <?stable@vger\.kernel\.org>?$`),
	}
)

func (s series) isExplained(t *testing.T) {
	for _, name := range s.names(t) {
		wanted := parts
		if path.Dir(name) == "upstream" {
			wanted = slices.Concat(parts, fixParts)
		}
		message, _, _ := strings.Cut(s.content(t, name), "\n---\n")
		for _, part := range wanted {
			if !part.MatchString(message) {
				t.Errorf("%s has nothing in its message like %s", name, part)
			}
		}
	}
}
