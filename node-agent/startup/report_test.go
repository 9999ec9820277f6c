package startup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A bundle has what the driver left beside its logs, and the list says why each sandbox failed.
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
