// Command generate writes the dashboards and the list of metrics below a given folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/dashboards"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr,
			"usage: generate FOLDER; the root of the repository, or where to write instead")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := dashboards.Files()
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
