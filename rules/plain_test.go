package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rooms that have wide lines or comments that are not plain, as folders without those below
// them. Only take rooms off.
var notPlainYet = []string{
	"kernel-mod/fastiovd", // its text is part of the key of a kernel that takes long to build
}

// A line is at most widest columns wide. A tab counts 4 columns in Go, and 8 in C as in the kernel.
const widest = 100

// Lines that may be wider: a text that stands alone, since users grep for messages and Prometheus
// reads a query as it is, and a row of a test's table.
var (
	lone = regexp.MustCompile("^\\s*((const |var )?(\"[^\"]*\"|[\\w.]+)\\s*(:?=|:)\\s*|\\+ )?" +
		"(\"(\\\\.|[^\"\\\\])*\"|`[^`]*`)[\\s,;:(){}\\]+]*$")
	row = regexp.MustCompile(`^\s*(\{|"[^"]*":\s*\{)`)
)

// Constructions that one has to read twice, and what to write instead.
var unplain = []struct {
	construction *regexp.Regexp
	instead      string
}{
	{regexp.MustCompile(`^(An? )?\w+ (is|are|was|were) (by )?(what|who|whom|those|how|where)\b`),
		`"X returns …", "X holds …" or "X is the …"`},
	{regexp.MustCompile(`\b[Tt]ells whether\b`), `"reports whether"`},
	{regexp.MustCompile(`\b[Ll]est\b`), `"so that … not"`},
	{regexp.MustCompile(`\b[Bb]ears?\b`), `what happens: "if nothing is frozen, it does nothing"`},
	{regexp.MustCompile(`\boff the way\b`), `"from the start path"`},
	{regexp.MustCompile(`\b[Ww]hom nobody\b`), `a noun: "a caller that nobody …"`},
	{regexp.MustCompile(`\b[Ww]ho waits\b`), `a noun: "a waiting caller"`},
	{regexp.MustCompile(`(^|[.:;] )Who(ever)? (is|has|holds|comes|calls|needs|sends|takes|wants)\b`),
		`a noun: "a caller that …"`},
	{regexp.MustCompile(`\b(is|are) (no|none)\b`), `"is not a …" or "there is no …"`},
}

// What the last construction does not mean.
var plainNo = regexp.MustCompile(`\b[Tt]here (is|are) (no|none)\b|\bno (longer|more than)\b`)

// A fault is a line that breaks one of these rules.
type fault struct {
	line int
	why  string
}

// faults returns the lines of a file that are too wide and, in Go, the comments that are not plain.
func faults(path, text string) (found []fault) {
	tab, whole := 8, map[int]bool{}
	if filepath.Ext(path) == ".go" {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.ParseComments)
		switch {
		case err != nil:
			return []fault{{1, err.Error()}}
		case ast.IsGenerated(file):
			return nil
		}
		tab, whole, found = 4, textOfSeveralLines(files, file), unplainComments(files, file)
	}
	for i, line := range strings.Split(text, "\n") {
		inTable := strings.HasSuffix(path, "_test.go") && row.MatchString(line)
		if n := width(line, tab); n > widest && !whole[i+1] && !inTable && !lone.MatchString(line) {
			found = append(found, fault{i + 1, fmt.Sprintf("%d columns: at most %d", n, widest)})
		}
	}
	return found
}

func width(line string, tab int) (columns int) {
	for _, c := range line {
		columns++
		for c == '\t' && columns%tab != 0 {
			columns++
		}
	}
	return columns
}

// textOfSeveralLines returns the lines of literals that cannot be broken elsewhere: Lua, Markdown.
func textOfSeveralLines(files *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, is := n.(*ast.BasicLit); is {
			from, to := files.Position(text.Pos()).Line, files.Position(text.End()).Line
			for line := from; line <= to && from < to; line++ {
				lines[line] = true
			}
		}
		return true
	})
	return lines
}

func unplainComments(files *token.FileSet, file *ast.File) (found []fault) {
	for _, comment := range file.Comments {
		text := strings.Join(strings.Fields(comment.Text()), " ")
		text = plainNo.ReplaceAllString(text, "")
		for _, u := range unplain {
			if is := u.construction.FindString(text); is != "" {
				line := files.Position(comment.Pos()).Line
				found = append(found, fault{line, fmt.Sprintf("%q: write %s", is, u.instead)})
			}
		}
	}
	return found
}

func TestLinesAreShortAndCommentsPlain(t *testing.T) {
	faulty := map[string]bool{}
	sources(t, func(path string) {
		if !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(path)) {
			return
		}
		room, found := filepath.Dir(path), faults(path, read(t, path))
		faulty[room] = faulty[room] || len(found) > 0
		if slices.Contains(notPlainYet, room) {
			return
		}
		for _, f := range found {
			t.Errorf("%s:%d: %s", path, f.line, f.why)
		}
	})
	for _, room := range notPlainYet {
		if !faulty[room] {
			t.Errorf("%s is plain, or gone: take it off notPlainYet", room)
		}
	}
}

func TestWhatIsNotPlainIsFound(t *testing.T) {
	const head = "package p\n\n"
	wide := strings.Repeat("x", widest)
	for text, want := range map[string]int{
		head + "// x is what y has.\nvar x int":                                   1,
		head + "// An x is how y does it.\nvar x int":                             1,
		head + "// x is the y.\nvar x int":                                        0,
		head + "// x bears that. It reports whether.":                             1,
		head + "// It tells whether x comes, lest y does.":                        2,
		head + "// Who holds nothing costs nothing.":                              1,
		head + "// y is no\n// list.":                                             1,
		head + "// There is no y. It is no longer a list.":                        0,
		head + "var x = y." + wide:                                                1,
		head + "var x = \"" + wide + "\"":                                         0,
		head + "var x = f(\"" + wide + "\", y)":                                   1,
		head + "// " + wide:                                                       1,
		head + "var x = `\n" + wide + "`":                                         0,
		"// Code generated by x. DO NOT EDIT.\n\n" + head + "// x is what y has.": 0,
	} {
		if found := faults("p.go", text); len(found) != want {
			t.Errorf("%q: %v, want %d", text, found, want)
		}
	}
	comment := "\t\t/* " + strings.Repeat("x", 80) + " */"
	for path, want := range map[string]int{"p.c": 1, "p.go": 0} {
		if found := faults(path, "package p\n"+comment); len(found) != want {
			t.Errorf("%s: %v, want %d", path, found, want)
		}
	}
}
