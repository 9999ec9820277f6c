package startup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// An album has an image for each name, and counts those that are held.
type album struct {
	images
	mu   sync.Mutex
	held map[string]int
}

func (a *album) Root(_ context.Context, name, _ string) (Root, error) {
	if name == "missing" {
		return Root{}, errors.New("there is no such image")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[name]++
	return Root{Path: "/" + name, Layers: []string{"/layer-of-" + name},
		Program: wire.Program{Command: []string{"run", name}, Args: 1, Dir: "/of/" + name,
			Env: map[string]string{"A": "image"}},
		Release: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.held[name]--
		}}, nil
}

// A sidecar runs of its own image, in which its start replaces what it says. All images are held as
// long as the sandbox, and no longer.
func TestSidecarsHaveImagesOfTheirOwn(t *testing.T) {
	s := newStarter(t, newPool(1), &driver{})
	a := &album{held: map[string]int{}}
	s.Images = a
	req := request("a")
	req.Image = "serving"
	req.Sidecars = []Sidecar{{Name: "one", Image: "one"},
		{Name: "two", Image: "two", Args: []string{"-v"}, Dir: "/", User: "7",
			Env: map[string]string{"A": "own"}, Mounts: []wire.Mount{{Path: "/secret",
				Files: []wire.File{{Data: []byte("hush"), Mode: 0o400}}}}}}
	st, err := s.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	one, two := st.Spec.Sidecars[0], st.Spec.Sidecars[1]
	if one.Name != "one" || one.Root != "/one" || one.Layers[0] != "/layer-of-one" ||
		strings.Join(one.Program.Command, " ") != "run one" || one.Program.Env["A"] != "image" ||
		one.Program.Dir != "/of/one" {
		t.Errorf("the first is %+v", one)
	}
	if strings.Join(two.Program.Command, " ") != "run -v" || two.Program.UID != 7 ||
		two.Program.Env["A"] != "own" || two.Program.Dir != "/" || len(two.Program.Mounts) != 1 {
		t.Errorf("the second is %+v", two)
	}
	text, err := os.ReadFile(filepath.Join(st.Spec.Dir, recordFile))
	if err != nil || strings.Contains(string(text), "hush") ||
		strings.Contains(string(text), "own") {
		t.Errorf("its record is %s, %v", text, err)
	}
	rec, err := ReadRecord(st.Spec.Dir)
	if err != nil || rec.Version != recordVersion || len(rec.Spec.Sidecars) != 2 ||
		rec.Spec.Sidecars[1].Root != "/two" {
		t.Errorf("its record is %+v, %v", rec, err)
	}
	if a.held["serving"] != 1 || a.held["one"] != 1 || a.held["two"] != 1 {
		t.Errorf("held are %v", a.held)
	}
	s.Release(st)
	req.ID, req.Sidecars[0].Image = "b", "missing"
	if _, err := s.Start(t.Context(), req); err == nil ||
		!strings.Contains(err.Error(), "the sidecar one: there is no such image") {
		t.Error(err)
	}
	for name, n := range a.held {
		if n != 0 {
			t.Errorf("%s is held %d times", name, n)
		}
	}
}

// What a former version can adopt is written as it reads it.
func TestOnlySidecarsNeedALaterRecord(t *testing.T) {
	dir := t.TempDir()
	rec := sandbox.Record{PID: 7, Spec: sandbox.Spec{Dir: dir}}
	for want, all := range map[int][]sandbox.Sidecar{vfVersion: nil,
		recordVersion: {{Name: "one"}}} {
		rec.Spec.Sidecars = all
		if err := WriteRecord(rec); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadRecord(dir); err != nil || got.Version != want {
			t.Errorf("its version is %d, %v; want %d", got.Version, err, want)
		}
	}
}
