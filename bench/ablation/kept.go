package ablation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Kept holds the rounds that were played, one a line in a file. Without a file it forgets them with
// the process.
type Kept struct {
	rounds []*Round
	file   *os.File
}

// Keep opens the file at path, or makes it. Rounds of another setting are not compared with those
// of this one, so a file that has some is refused. A line that was cut short by the end of a
// process is dropped: its round is played again.
func Keep(path string, setting Setting) (*Kept, error) {
	if path == "" {
		return &Kept{}, nil
	}
	k, whole, err := read(path)
	if err != nil {
		return nil, err
	}
	for _, round := range k.rounds {
		if round.Setting != setting {
			return nil, fmt.Errorf("%s has rounds of %v, and these are of %v: choose another"+
				" folder, or remove that file", path, round.Setting, setting)
		}
	}
	if k.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	if err := k.file.Truncate(whole); err != nil {
		return nil, errors.Join(err, k.file.Close())
	}
	if _, err := k.file.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, k.file.Close())
	}
	return k, nil
}

// read reads a file of rounds, and returns how many of its bytes are whole lines.
func read(path string) (k *Kept, whole int64, err error) {
	k = &Kept{}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	lines := bufio.NewReader(bytes.NewReader(content))
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the rest is not a whole line
			return k, whole, nil
		}
		round := &Round{}
		if err := json.Unmarshal(line, round); err != nil {
			return nil, 0, fmt.Errorf("%s:%d is not a round: %w", path, number, err)
		}
		k.rounds = append(k.rounds, round)
		whole += int64(len(line))
	}
}

// Close closes the file.
func (k *Kept) Close() error {
	if k.file == nil {
		return nil
	}
	return k.file.Close()
}

func (k *Kept) has(order Order) bool {
	return slices.ContainsFunc(k.rounds, func(r *Round) bool { return r.Order == order })
}

// add keeps a round, also should the machine fail in the next moment.
func (k *Kept) add(round *Round) error {
	k.rounds = append(k.rounds, round)
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
