// Package figures ties a measured figure to the sources it was measured on.
//
// A figure file is JSON: {"inputs": {"paths": […], "sha256": "…"}, "figures": whatever the bench printed}. The hash covers every
// source file under the paths; excepted are tests, packages that only tests use (their names end with test), prose and the figures
// themselves. Once it differs the figure is stale and no promise may rest on it.
package figures

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Inputs names the files or folders that were measured, relative to the repository's root, and the hash they had.
type Inputs struct {
	Paths  []string `json:"paths"`
	SHA256 string   `json:"sha256"`
}

// A File is the content of a figure file.
type File struct {
	Inputs  Inputs          `json:"inputs"`
	Figures json.RawMessage `json:"figures"`
}

// Hash is the hash of the sources under paths. A path that does not exist counts as an empty folder, so that a package may go.
func Hash(root string, paths []string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(root, path), func(name string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() && strings.HasSuffix(entry.Name(), "test") {
				return fs.SkipDir
			}
			if err != nil || !entry.Type().IsRegular() || !isSource(name) {
				return err
			}
			return add(sum, root, name)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func isSource(name string) bool {
	base := filepath.Base(name)
	return !strings.HasSuffix(base, "_test.go") && !strings.HasSuffix(base, ".md") && !strings.HasPrefix(base, ".") &&
		!strings.Contains(name, "/figures/") && !strings.Contains(name, "/testdata/") && !strings.Contains(name, "/__pycache__/")
}

func add(sum io.Writer, root, name string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	relative, err := filepath.Rel(root, name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(sum, "%s %d\n%s", filepath.ToSlash(relative), len(content), content)
	return err
}

// Current reports whether the figure file's inputs are still what they were.
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
