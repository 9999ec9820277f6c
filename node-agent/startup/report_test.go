package startup

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A report has the files that the driver left beside its logs, and the list says why each sandbox
// failed.
func TestReportsAreListed(t *testing.T) {
	r := &Reports{Dir: t.TempDir(), Keep: 3}
	if list := r.List(); len(list) != 0 {
		t.Errorf("%v", list)
	}
	dir := t.TempDir()
	left := map[string]string{"vmm.log": "said", "limits.txt": "memory.events: oom_kill 1"}
	for name, text := range left {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.Write(sandbox.Spec{ID: "a", Dir: dir}, nil, errors.New("its VMM ended"))
	files := readReport(t, r, "a")
	for name, text := range left {
		if files[name] != text {
			t.Errorf("%s: %q", name, files[name])
		}
	}
	if err := os.WriteFile(r.path("b"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	why := map[string]string{}
	for _, k := range r.List() {
		why[k.ID] = k.Why
	}
	if len(why) != 2 || why["a"] != "its VMM ended" || !strings.Contains(why["b"], "damaged") {
		t.Errorf("%v", why)
	}
}

// A report is whole from the moment it has its name. What a crash left of one does not count as a
// report.
func TestAReportIsWholeOrNone(t *testing.T) {
	dir := t.TempDir()
	former := &Reports{Dir: dir, Keep: 3}
	former.Write(sandbox.Spec{ID: "kept"}, nil, errors.New("it failed"))
	before, err := former.Read("kept")
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "half.tar.gz"+unfinished)
	if err := os.WriteFile(half, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Reports{Dir: dir, Keep: 3}
	if list := r.List(); len(list) != 1 || list[0].ID != "kept" {
		t.Errorf("listed: %v", list)
	}
	if err := os.Mkdir(r.path("kept")+unfinished, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.path("kept")+unfinished, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Here none can be written.
	r.Write(sandbox.Spec{ID: "kept"}, nil, errors.New("it failed again"))
	if after, err := r.Read("kept"); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what was there is harmed: %v", err)
	}
	r.Write(sandbox.Spec{ID: "next"}, nil, errors.New("another"))
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a crash left stays: %v", err)
	}
	if list := r.List(); len(list) != 2 {
		t.Errorf("listed: %v", list)
	}
}
