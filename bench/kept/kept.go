// Package kept keeps the rounds that benches have played, one a line in a file, so that a bench
// that was interrupted goes on where it stopped.
package kept

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Rounds holds rounds of one bench. Without a file it forgets them with the process.
type Rounds[R any] struct {
	All  []R
	file *os.File
}

// Open opens the file in the folder, and makes both if need be; no folder stands for no file. A
// line that was cut short by the end of a process is dropped: its round is played again.
func Open[R any](folder, name string) (*Rounds[R], error) {
	k := &Rounds[R]{}
	if folder == "" {
		return k, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	k.file = f
	if err := k.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return k, nil
}

// read reads the file's whole lines, and drops what is behind them.
func (k *Rounds[R]) read() error {
	text, err := io.ReadAll(k.file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	number := 0
	for line := range bytes.Lines(text[:whole]) {
		number++
		var round R
		if err := json.Unmarshal(line, &round); err != nil {
			return fmt.Errorf("%s:%d is not a round: %w", k.file.Name(), number, err)
		}
		k.All = append(k.All, round)
	}
	if err := k.file.Truncate(int64(whole)); err != nil {
		return err
	}
	_, err = k.file.Seek(int64(whole), io.SeekStart)
	return err
}

// Add keeps a round, also should the machine fail in the next moment.
func (k *Rounds[R]) Add(round R) error {
	k.All = append(k.All, round)
	if k.file == nil {
		return nil
	}
	line, err := json.Marshal(round)
	if err == nil {
		_, err = k.file.Write(append(line, '\n'))
	}
	if err == nil {
		err = k.file.Sync()
	}
	return err
}

// File returns the file's path, or nothing.
func (k *Rounds[R]) File() string {
	if k.file == nil {
		return ""
	}
	return k.file.Name()
}

// Close closes the file.
func (k *Rounds[R]) Close() error {
	if k.file == nil {
		return nil
	}
	return k.file.Close()
}
