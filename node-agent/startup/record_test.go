package startup

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestARecordIsKeptWholeAndPrivate(t *testing.T) {
	s := &Starter{RunDir: t.TempDir()}
	dir := s.Dir("a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	rec := sandbox.Record{Spec: sandbox.Spec{ID: "a", Dir: dir}, PID: 7, StartTicks: 8,
		Secret: door.NewSecret()}
	rec.Spec.Program.Command, rec.Spec.Program.Args = []string{"run", "--TOKEN=x"}, 1
	rec.Spec.Program.Env = map[string]string{"TOKEN": "c2VjcmV0"}
	rec.Spec.Program.Mounts = []wire.Mount{{Path: "/a", Files: []wire.File{{Name: "TOKEN"}}}}
	if err := WriteRecord(rec); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, recordFile)); err != nil ||
		strings.Contains(string(text), "TOKEN") {
		t.Errorf("the record has what the program is given: %s, %v", text, err)
	}
	read, err := ReadRecord(dir)
	if err != nil || read.PID != rec.PID || read.Secret != rec.Secret {
		t.Errorf("%+v, %v", read, err)
	}
	if info, err := os.Stat(filepath.Join(dir, recordFile)); err != nil ||
		info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Beginnings of records as the first version wrote them, and the second.
const (
	former = `"Spec":{"ID":"a","Dir":"DIR","Root":"","Program":{"command":null},"MemoryMiB":64,` +
		`"VF":{"BDF":"0000:01:10.0","Group":"/dev/vfio/5","MAC":"02:fa:ef:b4:bb:e9",` +
		`"Address":"10.0.2.100/24","Gateway":"10.0.2.2","DNS":"10.0.2.3"}},` +
		`"PID":188,"StartTicks":5808}`
	first  = `{` + former
	second = `{"Version":2,` + former
)

// A VF in a record of the former version is understood as a NIC.
func TestAFormerVFIsANIC(t *testing.T) {
	dir := t.TempDir()
	text := strings.Replace(second, "DIR", dir, 1)
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rec, err := ReadRecord(dir)
	want := &sandbox.NIC{
		Kind: "vf", MAC: "02:fa:ef:b4:bb:e9", Address: netip.MustParsePrefix("10.0.2.100/24"),
		Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"),
		PCI: &sandbox.PCI{BDF: "0000:01:10.0", Group: "/dev/vfio/5"},
	}
	if err != nil || !reflect.DeepEqual(rec.Spec.NIC, want) || rec.PID != 188 {
		t.Errorf("read %+v, %v; want NIC %+v", rec, err, want)
	}
}

// A record of a sandbox with a VF, or without a network, is understood by agents of version 2.
func TestAFormerAgentUnderstandsAVF(t *testing.T) {
	for _, nic := range []*sandbox.NIC{nil, {Kind: "tap", MAC: "02:fa:ef:b4:bb:e9"}, {
		Kind: "vf", MAC: "02:fa:ef:b4:bb:e9", Address: netip.MustParsePrefix("10.0.2.100/24"),
		PCI: &sandbox.PCI{BDF: "0000:01:10.0", Group: "/dev/vfio/5"},
	}} {
		dir := t.TempDir()
		rec := sandbox.Record{Spec: sandbox.Spec{ID: "a", Dir: dir, NIC: nic}, PID: 7}
		if err := WriteRecord(rec); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, recordFile))
		var former struct {
			Version, PID int
			Spec         struct {
				ID string
				VF *struct {
					BDF, Group, MAC string
					Address         netip.Prefix
				}
			}
		}
		if err := errors.Join(err, json.Unmarshal(text, &former)); err != nil {
			t.Fatal(err)
		}
		version, vf := 2, former.Spec.VF
		switch {
		case nic != nil && nic.PCI == nil:
			version = 3
		case nic != nil && (vf == nil || vf.BDF != nic.PCI.BDF || vf.Group != nic.PCI.Group ||
			vf.MAC != nic.MAC || vf.Address != nic.Address):
			t.Errorf("its VF: %s", text)
		}
		if former.Version != version || former.PID != 7 || former.Spec.ID != "a" {
			t.Errorf("%s, want version %d", text, version)
		}
		if read, err := ReadRecord(dir); err != nil || !reflect.DeepEqual(read.Spec.NIC, nic) {
			t.Errorf("read %+v, %v", read.Spec.NIC, err)
		}
	}
}

// A record of another version, or one that cannot be read, names its sandbox and says why that can
// only be ended.
func TestRecordsOfOthers(t *testing.T) {
	s := &Starter{RunDir: t.TempDir()}
	record := func(version int) string {
		nic := &sandbox.NIC{PCI: &sandbox.PCI{Group: "/dev/vfio/7"}}
		spec := sandbox.Spec{ID: "a", Dir: s.Dir("a"), NIC: nic}
		rec := sandbox.Record{Version: version, Spec: spec, PID: 7}
		text, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := os.MkdirAll(s.Dir("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, want string
		nic        bool
	}{
		{record(recordVersion), "", true},
		{strings.Replace(record(recordVersion), `"PID"`, `"Later":{"A":1},"PID"`, 1), "", true},
		{strings.Replace(first, "DIR", s.Dir("a"), 1), "of a former version", true},
		{strings.Replace(second, "DIR", s.Dir("a"), 1), "", true},
		{record(99), "of a later version", true},
		{strings.Replace(record(99), `"PID":7`, `"PID":"seven"`, 1), "of a later version", true},
		{strings.Replace(record(recordVersion), `"PID":7`, `"PID":0`, 1), "was not finished", true},
		{strings.Replace(record(recordVersion), s.Dir("a"), "/elsewhere", 1), "record of /elsewhere", false},
		{`{"Version":`, "unexpected end", false},
	} {
		if err := os.WriteFile(filepath.Join(s.Dir("a"), recordFile),
			[]byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		found := s.Records()
		if len(found) != 1 {
			t.Fatalf("%s: found %+v", c.text, found)
		}
		spec, err := found[0].Spec, found[0].Err
		if spec.ID != "a" || spec.Dir != s.Dir("a") || (spec.NIC != nil) != c.nic {
			t.Errorf("%s: found %+v", c.text, spec)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}
