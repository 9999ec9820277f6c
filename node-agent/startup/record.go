package startup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const recordFile = "record.json"

// The versions of records. Those of the first bore no number: their guests have no secret, and call
// where nobody listens any more. Version 2 had a VF where there is a NIC now. A field may be added
// within a version if whoever does not know it may ignore it.
const (
	vfVersion     = 2
	recordVersion = 3
)

// WriteRecord puts rec into its sandbox's run directory, whole or not at all.
func WriteRecord(rec sandbox.Record) error {
	rec.Version = recordVersion
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

// ReadRecord reads what WriteRecord wrote into dir. With the error that it is of another version
// comes what of the record can be understood.
func ReadRecord(dir string) (rec sandbox.Record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	if err = json.Unmarshal(b, &rec); err == nil && rec.Version <= vfVersion {
		rec.Spec.NIC, err = formerNIC(b)
	}
	switch {
	case rec.Version > recordVersion:
		return rec, fmt.Errorf("it is of a later version of fastiov: "+
			"its record's is %d, this one knows %d", rec.Version, recordVersion)
	case err != nil:
		return rec, fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	case rec.Spec.Dir != dir:
		return sandbox.Record{}, fmt.Errorf("%s is the record of %s", dir, rec.Spec.Dir)
	case rec.Version < vfVersion:
		return rec, errors.New("it is of a former version of fastiov, " +
			"whose guests this one does not speak to")
	}
	return rec, nil
}

// formerNIC reads the VF of a record of version 2 or before.
func formerNIC(record []byte) (*sandbox.NIC, error) {
	var former struct {
		Spec struct {
			VF *struct {
				sandbox.NIC
				sandbox.PCI
			}
		}
	}
	err := json.Unmarshal(record, &former)
	if err != nil || former.Spec.VF == nil {
		return nil, err
	}
	nic := former.Spec.VF.NIC
	nic.Kind, nic.PCI = "vf", &former.Spec.VF.PCI
	return &nic, nil
}

// A Found record is that of a sandbox which a former agent left.
type Found struct {
	sandbox.Record
	Err error // why the sandbox can only be ended; nil: it can be adopted
}

// Records returns a record for every run directory that a former agent left. One that was never
// written, or cannot be read, names the sandbox alone.
func (s *Starter) Records() []Found {
	dirs, _ := os.ReadDir(filepath.Join(s.RunDir, "sandbox"))
	records := make([]Found, len(dirs))
	for i, d := range dirs {
		rec, err := ReadRecord(s.Dir(d.Name()))
		rec.Spec.ID, rec.Spec.Dir = d.Name(), s.Dir(d.Name())
		if err == nil && rec.PID == 0 {
			err = errors.New("its start was not finished")
		}
		records[i] = Found{rec, err}
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
