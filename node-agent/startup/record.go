package startup

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const recordFile = "record.json"

// WriteRecord puts rec into its sandbox's run directory, whole or not at all.
func WriteRecord(rec sandbox.Record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(rec.Spec.Dir, recordFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadRecord reads what WriteRecord wrote into dir.
func ReadRecord(dir string) (rec sandbox.Record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	}
	if rec.Spec.Dir != dir {
		return rec, fmt.Errorf("%s is the record of %s", dir, rec.Spec.Dir)
	}
	return rec, nil
}

// Records returns a record for every run directory that a former agent left. One that was never written, or cannot be read, names
// the sandbox but no process: such a sandbox can only be ended.
func (s *Starter) Records() []sandbox.Record {
	dirs, _ := os.ReadDir(filepath.Join(s.RunDir, "sandbox"))
	records := make([]sandbox.Record, len(dirs))
	for i, d := range dirs {
		rec, err := ReadRecord(s.Dir(d.Name()))
		if err != nil {
			rec = sandbox.Record{Spec: sandbox.Spec{ID: d.Name(), Dir: s.Dir(d.Name())}}
		}
		records[i] = rec
	}
	return records
}

// Leftovers lists the run directories that belong to no sandbox in live.
func (s *Starter) Leftovers(live map[string]bool) (left []string) {
	dirs, _ := os.ReadDir(filepath.Join(s.RunDir, "sandbox"))
	for _, d := range dirs {
		if !live[d.Name()] {
			left = append(left, "run directory "+s.Dir(d.Name()))
		}
	}
	return left
}
