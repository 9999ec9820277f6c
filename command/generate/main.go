// Command generate writes the configuration's reference and its default file, below the folder that
// it is given.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/command"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER; the root of the repository, or another")
		os.Exit(2)
	}
	for name, content := range command.Files() {
		path := filepath.Join(os.Args[1], name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}
