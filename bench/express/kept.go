package express

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Kept holds rounds, one a line in a file: each run adds its own. Without a file it forgets them
// with the process.
type Kept struct {
	rounds []Round
	file   *os.File
}

// Keep opens the file at path, or makes it. A line that was cut short is dropped.
func Keep(path string) (*Kept, error) {
	if path == "" {
		return &Kept{}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	k := &Kept{file: f}
	text, err := os.ReadFile(path)
	whole := strings.LastIndexByte(string(text), '\n') + 1
	for line := range strings.Lines(string(text[:whole])) {
		var r Round
		if failed := json.Unmarshal([]byte(line), &r); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s has a line that is no round: %w", path, failed))
			break
		}
		k.rounds = append(k.rounds, r)
	}
	if err == nil {
		err = f.Truncate(int64(whole))
	}
	if err == nil {
		_, err = f.Seek(int64(whole), 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return k, nil
}

// Close closes the file.
func (k *Kept) Close() error {
	if k.file == nil {
		return nil
	}
	return k.file.Close()
}

// of refuses rounds of another machine or kernel.
func (k *Kept) of(machine string) error {
	for _, r := range k.rounds {
		if r.On != machine {
			return fmt.Errorf("%s has rounds of %s, and this is %s: name another folder",
				k.file.Name(), r.On, machine)
		}
	}
	return nil
}

func (k *Kept) add(r Round) error {
	k.rounds = append(k.rounds, r)
	if k.file == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = k.file.Write(append(line, '\n'))
	}
	return err
}
