package command

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/invoker/pool"
)

// The sandboxes that an invoker leaves warm are noted in its run directory for the next one there.
func leftFile(runDir string) string { return filepath.Join(runDir, "warm.json") }

func noteLeft(file string, left []pool.Left) error {
	content, err := json.Marshal(left)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// takeLeft reads the note and removes it, so that a crash of this process leaves none: its
// sandboxes may then be running anything.
func takeLeft(file string, log *slog.Logger) (left []pool.Left) {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(os.Remove(file), json.Unmarshal(content, &left))
	}
	if err != nil {
		log.Warn("which sandboxes the invoker before has left warm cannot be read; they end",
			"err", err)
		return nil
	}
	return left
}
