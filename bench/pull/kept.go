package pull

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
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

// has says whether an order was played. A pull of another image, or by other programs, under the
// same name is an error: its figure would be told of what was not measured.
func (k *Kept) has(o Order, of Image, about string) (bool, error) {
	n := slices.IndexFunc(k.rounds, func(r Round) bool { return r.Order == o })
	if n < 0 {
		return false, nil
	}
	of.Dir = ""
	if r := k.rounds[n]; r.Of != of || r.About != about {
		return false, fmt.Errorf("%s has pulls of another %s, or by another %s (%s, now %s): "+
			"name another folder", k.file.Name(), o.Image, o.Arm, r.About, about)
	}
	return true, nil
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
