// Command stamp reads a bench's JSON from standard input and writes it as a figure file that names
// the measured sources.
//
//	stamp FIGURE PATH…      write FIGURE
//	stamp -current FIGURE   exit 0 if FIGURE was measured on the present sources
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/rules/figures"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "-current" {
		if current, err := figures.Current(".", os.Args[2]); err != nil || !current {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) < 3 {
		fail(fmt.Errorf(
			"usage: stamp FIGURE PATH… or stamp -current FIGURE, in the repository's root"))
	}
	if err := stamp(os.Stdin, os.Args[1], os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "stamp:", err)
	os.Exit(1)
}

func stamp(bench io.Reader, file string, paths []string) error {
	var figure figures.File
	if err := json.NewDecoder(bench).Decode(&figure.Figures); err != nil {
		return fmt.Errorf("what the bench printed is not JSON: %w; %s is left as it was", err, file)
	}
	hash, err := figures.Hash(".", paths)
	if err != nil {
		return err
	}
	figure.Inputs = figures.Inputs{Paths: paths, SHA256: hash}
	content, err := json.MarshalIndent(figure, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}
