package mounts

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mounts")
	at, err := Write(dir, []wire.Mount{
		{Path: "/etc/app", Files: []wire.File{
			{Name: "a", Data: []byte("one"), Mode: 0o400},
			{Name: "deep/er/b", Data: []byte("two"), Mode: 0o755}}},
		{Path: "/etc/app.conf", Files: []wire.File{{Data: []byte("three"), Mode: 0o644}}},
		{Path: "/etc/none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		text string
		mode fs.FileMode
	}{
		at[0] + "/a":         {"one", 0o400},
		at[0] + "/deep/er/b": {"two", 0o755},
		at[1]:                {"three", 0o644},
	} {
		text, err := os.ReadFile(name)
		info, other := os.Stat(name)
		if err != nil || other != nil || string(text) != want.text || info.Mode() != want.mode {
			t.Errorf("%s: %q, %v, %v", name, text, info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info, err)
	}
	if info, err := os.Stat(at[2]); err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
		t.Errorf("%s: %v, %v", at[2], info, err)
	}
	if at, err := Write(filepath.Join(dir, "none"), nil); at != nil || err != nil {
		t.Errorf("without mounts: %v, %v", at, err)
	}
}

// What replaces a file is whole in its place, and nothing else is touched.
func TestRenew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mounts")
	at, err := Write(dir, []wire.Mount{
		{Path: "/first", Files: []wire.File{{Name: "a", Data: []byte("one"), Mode: 0o400}}},
		{Path: "/a", Files: []wire.File{{Name: "deep/a", Data: []byte("one"), Mode: 0o400},
			{Name: "b", Data: []byte("one"), Mode: 0o400}}},
		{Path: "/alone", Files: []wire.File{{Data: []byte("one"), Mode: 0o400}}}})
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(at[1] + "/deep/a")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	renew := func(i int, name string) error {
		all := []wire.Mount{{Path: "/first"}, {Path: "/a"}, {Path: "/alone"}}
		all[i].Files = []wire.File{{Name: name, Data: []byte("another"), Mode: 0o440}}
		return Renew(dir, all)
	}
	if err := renew(1, "deep/a"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{at[0] + "/a": "one", at[1] + "/b": "one",
		at[1] + "/deep/a": "another", at[2]: "one"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if text, err := io.ReadAll(open); err != nil || string(text) != "one" {
		t.Errorf("who had it open reads %q, %v", text, err)
	}
	if is, err := os.Stat(at[1] + "/deep/a"); err != nil || is.Mode() != 0o440 {
		t.Errorf("%v, %v", is, err)
	}
	for _, c := range []struct {
		mount int
		name  string
	}{{1, "none"}, {1, "deep"}, {2, ""}, {0, "../../out"}} {
		if renew(c.mount, c.name) == nil {
			t.Errorf("%+v is renewed", c)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := renew(1, "b"); err == nil || strings.Contains(err.Error(), filepath.Dir(dir)) {
		t.Errorf("whose program it is learns %v", err)
	}
}

// No name leads out of the folder: neither past CheckMounts nor, unchecked, past Write.
func TestNothingIsWrittenElsewhere(t *testing.T) {
	for _, m := range []wire.Mount{
		{Path: "etc"}, {Path: "/"}, {Path: "/etc/../.."}, {Path: "/etc/"}, {Path: ""},
		{Path: "/a", Files: []wire.File{{Name: "../../out"}}},
		{Path: "/a", Files: []wire.File{{Name: "/out"}}},
		{Path: "/a", Files: []wire.File{{Name: "."}}},
		{Path: "/a", Files: []wire.File{{Name: "a\x00"}}},
		{Path: "/a", Files: []wire.File{{Name: ""}, {Name: "b"}}},
		{Path: "/a", Files: []wire.File{{Name: "a", Mode: fs.ModeSetuid}}},
		{Path: "/a", Files: []wire.File{{Name: "a", Data: make([]byte, limits.Files)}}},
		{Path: "/a", Files: make([]wire.File, limits.Files/512)},
		{Path: "/proc"}, {Path: "/sys/fs/cgroup"}, {Path: "/dev/x"}, {Path: "/etc"}, {Path: "/run"},
		{Path: "/run/fastiov/0"}, {Path: strings.Repeat("/a", 17)},
		{Path: "/" + strings.Repeat("a", 1024)},
		{Path: "/a", Files: []wire.File{{Name: strings.Repeat("a/", 16) + "a"}}},
	} {
		if wire.CheckMounts([]wire.Mount{m}) == nil {
			t.Errorf("%+v is taken for a good one", m)
		}
	}
	deep := wire.Mount{Path: "/etc/a"}
	for range 1000 { // each with folders of its own
		deep.Files = append(deep.Files, wire.File{Name: strings.Repeat("a/", 15) + "a"})
	}
	if wire.CheckMounts([]wire.Mount{deep}) == nil {
		t.Error("folders count nothing")
	}
	if wire.CheckMounts(make([]wire.Mount, 1000)) == nil {
		t.Error("1000 mounts are taken for few")
	}
	outer := t.TempDir()
	_, err := Write(filepath.Join(outer, "in"),
		[]wire.Mount{{Path: "/a", Files: []wire.File{{Name: "../../out", Data: []byte("x")}}}})
	if err == nil || !strings.Contains(err.Error(), "/a") {
		t.Errorf("a name that leads out: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outer, "out")); err == nil {
		t.Error("it was written outside")
	}
}
