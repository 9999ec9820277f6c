package vf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// The versions of entries. A field may be added within a version if a reader that does not know it
// may ignore it; else the version rises. An agent reads the entries of every former version. It
// writes an entry in the lowest version that can say it: version 1 knows VFs of sandboxes, by vfio,
// and version 2 no settings of a lease's own.
// So an agent of that version adopts sandboxes of this one, too. Of any other lease it says that it
// is of a later version, and leaves the VF alone as long as some process has it.
const (
	sandboxVersion = 1
	holdersVersion = 2
	journalVersion = 3
	journalMax     = 64 << 10
)

var bdfPattern = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// An entry is one file of the journal, about one VF. It has an owner exactly when the VF is leased.
type entry struct {
	Version    int    `json:"version"`
	BDF        string `json:"bdf"`
	State      State  `json:"state"`
	Generation uint64 `json:"generation"`
	Owner      *Owner `json:"owner,omitempty"`
	Driver     Driver `json:"driver,omitempty"` // it was given to its tenant by; absent: vfio
	// Settings are set for this lease and, once it is returned, have yet to be taken back.
	Settings *Settings `json:"settings,omitempty"`

	refused string // why the file cannot be understood: then the owner is unknown
}

// version returns the lowest version that can say e.
func (e entry) version() int {
	switch {
	case e.Settings != nil:
		return journalVersion
	case e.Driver != "" || e.Owner != nil && e.Owner.Kind != Sandbox:
		return holdersVersion
	}
	return sandboxVersion
}

// decodeEntry reads an entry of this version or a former one. Any other is an error, because a VF
// that somebody else's agent leased must not be touched on a guess.
func decodeEntry(data []byte, bdf string) (entry, error) {
	var e entry
	err := json.Unmarshal(data, &e)
	switch {
	case e.Version > journalVersion: // be it that its other fields cannot be read
		return entry{}, fmt.Errorf(
			"it is of a later version of fastiov: it is %d, this one knows %d",
			e.Version, journalVersion)
	case err != nil:
		return entry{}, fmt.Errorf("unreadable: %w", err)
	case e.Version < sandboxVersion:
		return entry{}, fmt.Errorf("version %d: there has been none before %d",
			e.Version, sandboxVersion)
	case e.BDF != bdf:
		return entry{}, fmt.Errorf("it is about %q", e.BDF)
	case !slices.Contains(States, e.State):
		return entry{}, fmt.Errorf("state %q is unknown", e.State)
	case (e.State == Leased) != (e.Owner != nil):
		return entry{}, fmt.Errorf("state %s does not go with its owner", e.State)
	case e.Driver != "" && e.Driver != Netdev:
		return entry{}, fmt.Errorf("driver %q is unknown", e.Driver)
	case e.Owner == nil:
		return e, nil
	case e.Owner.Name == "":
		return entry{}, errors.New("it is leased by nobody")
	}
	if e.Version == sandboxVersion {
		e.Owner.Kind = cmp.Or(e.Owner.Kind, Sandbox)
	}
	if _, known := holders[e.Owner.Kind]; !known {
		return entry{}, fmt.Errorf("it is leased by a %q, which is unknown", e.Owner.Kind)
	}
	return e, nil
}

// A journal is the directory of entries, <bdf>.json each.
type journal string

func (j journal) path(bdf string) string { return filepath.Join(string(j), bdf+".json") }

// write replaces the entry of e's VF. When it fails, the former entry counts.
func (j journal) write(e entry) error {
	if e.Driver == VFIO {
		e.Driver = ""
	}
	if e.Version = e.version(); e.Version == sandboxVersion && e.Owner != nil {
		owner := *e.Owner
		owner.Kind = "" // agents of that version refuse a field that they do not know
		e.Owner = &owner
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := replace(j.path(e.BDF), data); err != nil {
		return fmt.Errorf("journal of %s: %w; is there room in %s?", e.BDF, err, j)
	}
	failpoint.Hit(failpoint.JournalRenamed)
	return nil
}

// read returns every entry. A file that cannot be understood counts as a lease by an unknown owner.
func (j journal) read(warn func(bdf string, err error)) (map[string]entry, error) {
	files, err := os.ReadDir(string(j))
	if err != nil {
		return nil, err
	}
	entries := map[string]entry{}
	for _, f := range files {
		// A crash came between write and rename: the entry never counted.
		if strings.HasSuffix(f.Name(), tempSuffix) {
			_ = os.Remove(filepath.Join(string(j), f.Name()))
		}
		bdf, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || !bdfPattern.MatchString(bdf) {
			continue
		}
		e, err := j.readOne(bdf)
		if err != nil {
			warn(bdf, err)
			e = entry{BDF: bdf, State: Leased, refused: err.Error()}
		}
		entries[bdf] = e
	}
	return entries, nil
}

func (j journal) readOne(bdf string) (entry, error) {
	f, err := os.Open(j.path(bdf))
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, journalMax))
	if err != nil {
		return entry{}, err
	}
	return decodeEntry(data, bdf)
}

const tempSuffix = ".new"

// replace makes path hold data; a reader sees all of it at once. It does not sync: see the package
// comment.
func replace(path string, data []byte) error {
	temp := path + tempSuffix
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		_ = os.Remove(temp)
		return err
	}
	failpoint.Hit(failpoint.JournalTemp)
	return os.Rename(temp, path)
}
