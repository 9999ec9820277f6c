package pull

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Kept holds the rounds that were played, one a line in a file. Without a file it forgets them with
// the process.
type Kept struct {
	rounds []Round
	file   *os.File
}

// Keep opens the file at path, or makes it. A line that was cut short is dropped: its round is
// played again.
func Keep(path string) (*Kept, error) {
	k := &Kept{}
	if path == "" {
		return k, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	k.file = f
	var whole int64
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var round Round
		if err := json.Unmarshal(line, &round); err != nil {
			return nil, errors.Join(fmt.Errorf("%s has a line that is no pull: %w", path, err),
				f.Close())
		}
		k.rounds = append(k.rounds, round)
		whole += int64(len(line))
	}
	if err := f.Truncate(whole); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(whole, 0); err != nil {
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

func (k *Kept) has(o Order) bool {
	return slices.ContainsFunc(k.rounds, func(r Round) bool { return r.Order == o })
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

// mountedBelow returns what is mounted below a directory, in the order in which it was.
func mountedBelow(mounts, dir string) (at []string) {
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 1 &&
			strings.HasPrefix(fields[1], dir+"/") {
			at = append(at, fields[1])
		}
	}
	return at
}
