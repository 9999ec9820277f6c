// Package figures ties a measured figure to the sources on which it was measured.
//
// A figure file is JSON: {"inputs": {"paths": […], "sha256": "…"}, "figures": the bench's output}.
// The hash covers every source file under the paths, except tests, packages that only tests use
// (their names end with test), prose and the figures themselves. Once the hash differs, the figure
// is stale and no promise may rest on it.
//
// Go counts by its syntax: comments, line breaks, the package's name and its folder do not change
// the hash.
package figures

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Inputs names the files or folders that were measured, relative to the repository's root, and the
// hash of them all at that time.
type Inputs struct {
	Paths  []string `json:"paths"`
	SHA256 string   `json:"sha256"`
}

// A File is the content of a figure file.
type File struct {
	Inputs  Inputs          `json:"inputs"`
	Figures json.RawMessage `json:"figures"`
}

// Hash returns the hash of the sources under paths. A path that does not exist counts as an empty
// folder, so that a package may be removed.
func Hash(root string, paths []string) (string, error) {
	var files []string
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(root, path),
			func(name string, entry fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err == nil && entry.IsDir() && strings.HasSuffix(entry.Name(), "test") {
					return fs.SkipDir
				}
				if err != nil || !entry.Type().IsRegular() || !isSource(name) {
					return err
				}
				file, err := digest(name)
				files = append(files, file)
				return err
			})
		if err != nil {
			return "", err
		}
	}
	slices.Sort(files) // their folders do not count
	sum := sha256.Sum256([]byte(strings.Join(files, "\n")))
	return hex.EncodeToString(sum[:]), nil
}

func isSource(name string) bool {
	base := filepath.Base(name)
	return !strings.HasSuffix(base, "_test.go") && !strings.HasSuffix(base, ".md") &&
		!strings.HasPrefix(base, ".") &&
		!strings.Contains(name, "/figures/") && !strings.Contains(name, "/testdata/") &&
		!strings.Contains(name, "/__pycache__/")
}

// digest returns a file's name without its folder, and the hash of its content.
func digest(name string) (string, error) {
	content, err := os.ReadFile(name)
	if err == nil && filepath.Ext(name) == ".go" {
		content, err = syntax(name, content)
	}
	return fmt.Sprintf("%s %x", filepath.Base(name), sha256.Sum256(content)), err
}

// syntax returns what the compiler sees of a Go file: its directives and its syntax tree, without
// the package's name and the imports of this module.
func syntax(name string, content []byte) ([]byte, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, content,
		parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var seen bytes.Buffer
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if strings.HasPrefix(comment.Text, "//go:") {
				fmt.Fprintln(&seen, comment.Text)
			}
		}
	}
	for _, declaration := range file.Decls {
		imports, ok := declaration.(*ast.GenDecl)
		if !ok || imports.Tok != token.IMPORT {
			continue
		}
		imports.Specs = slices.DeleteFunc(imports.Specs, func(s ast.Spec) bool {
			return strings.HasPrefix(s.(*ast.ImportSpec).Path.Value, `"github.com/fastiov/fastiov/`)
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) { // for these positions it counts whether they are set
		case *ast.CallExpr:
			n.Ellipsis = min(n.Ellipsis, 1)
		case *ast.Ellipsis:
			n.Ellipsis = 1
		case *ast.TypeSpec:
			n.Assign = min(n.Assign, 1)
		}
		return true
	})
	err = ast.Fprint(&seen, nil, file.Decls, func(field string, value reflect.Value) bool {
		switch field {
		case "Doc", "Comment":
			return false
		case "Ellipsis", "Assign":
			return true
		}
		return value.Type() != reflect.TypeFor[token.Pos]()
	})
	return seen.Bytes(), err
}

// Current reports whether the figure file's inputs are unchanged.
func Current(root, file string) (bool, error) {
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return false, err
	}
	var figure File
	if err := json.Unmarshal(content, &figure); err != nil {
		return false, fmt.Errorf("%s is not a figure file: %w", file, err)
	}
	if len(figure.Inputs.Paths) == 0 {
		return false, fmt.Errorf("%s names no inputs", file)
	}
	hash, err := Hash(root, figure.Inputs.Paths)
	return hash == figure.Inputs.SHA256, err
}
