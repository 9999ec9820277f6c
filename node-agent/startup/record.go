package startup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const recordFile = "record.json"

// The versions of records. Those of the first bore no number: their guests have no secret, and call
// where nothing listens any more. Version 2 has a VF where there is a NIC now. A NIC that is a VF
// is written both ways, so an agent of that version adopts its sandbox after a rollback; another
// NIC makes the record one of version 3, and sidecars one of version 4. A field may be added within
// a version if a reader that does not know it may ignore it.
const (
	vfVersion     = 2
	nicVersion    = 3
	recordVersion = 4
)

// A stored record is one as it is written.
type stored struct {
	sandbox.Record
	Spec storedSpec
}

type storedSpec struct {
	sandbox.Spec
	VF *formerVF `json:",omitempty"`
}

type formerVF struct {
	sandbox.NIC
	sandbox.PCI
}

// formerly returns nic as version 2 has it.
func formerly(nic *sandbox.NIC) *formerVF {
	vf := &formerVF{*nic, *nic.PCI}
	vf.NIC.PCI = nil
	return vf
}

// now returns the NIC that a VF of a record of version 2 stands for.
func (vf *formerVF) now() *sandbox.NIC {
	nic := vf.NIC
	nic.Kind, nic.PCI = "vf", &vf.PCI
	return &nic
}

// WriteRecord puts rec into its sandbox's run directory, whole or not at all. What only a start
// needs to know of the program is not written, as it may be secret.
func WriteRecord(rec sandbox.Record) error {
	rec.Version = vfVersion
	bare(&rec.Spec.Program)
	rec.Spec.Sidecars = slices.Clone(rec.Spec.Sidecars)
	for i := range rec.Spec.Sidecars {
		bare(&rec.Spec.Sidecars[i].Program)
	}
	s := stored{rec, storedSpec{Spec: rec.Spec}}
	switch nic := rec.Spec.NIC; {
	case nic == nil:
	case nic.PCI != nil:
		s.Spec.VF = formerly(nic)
	default:
		s.Version = nicVersion
	}
	if len(rec.Spec.Sidecars) > 0 {
		s.Version = recordVersion
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(rec.Spec.Dir, recordFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// bare takes from a program what only a start needs to know.
func bare(p *wire.Program) {
	p.Command, p.Args, p.Env, p.Mounts, p.ProbeCommand = nil, 0, nil, nil, nil
}

// ReadRecord reads what WriteRecord wrote into dir. With the error that it is of another version
// comes what of the record can be understood.
func ReadRecord(dir string) (rec sandbox.Record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	var s stored
	err = json.Unmarshal(b, &s)
	rec, rec.Spec = s.Record, s.Spec.Spec
	if rec.Spec.NIC == nil && s.Spec.VF != nil {
		rec.Spec.NIC = s.Spec.VF.now()
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
