package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov/node-agent/image/build"
)

func TestOneLineIsSaidOfEachPatch(t *testing.T) {
	applies := build.TriedPatch{Name: "upstream/1.patch"}
	rejected := build.TriedPatch{Name: "local/2.patch", Rejects: []string{"mm/a.c:7", "mm/b.c:9"}}
	for _, c := range []struct {
		patches   []build.TriedPatch
		said, err string
	}{
		{[]build.TriedPatch{applies}, "  applies         upstream/1.patch\n", ""},
		{
			[]build.TriedPatch{applies, rejected},
			"  applies         upstream/1.patch\n" +
				"  does not apply  local/2.patch: mm/a.c:7, mm/b.c:9\n",
			"1 of 2 patches do not apply to 6.12.2",
		},
	} {
		var said strings.Builder
		err := tell(&said, build.Trial{Pinned: "6.12.1", Newest: "6.12.2", Patches: c.patches})
		const head = "6.12.1 is pinned; the newest kernel that the mirror has is 6.12.2\n"
		if said.String() != head+c.said || (err == nil) != (c.err == "") ||
			err != nil && err.Error() != c.err {
			t.Errorf("said %q, %v", said.String(), err)
		}
	}
	var said strings.Builder
	if err := tell(&said, build.Trial{Pinned: "6.12.2", Newest: "6.12.2"}); err != nil ||
		said.String() != "6.12.2 is the newest kernel that the mirror has\n" {
		t.Errorf("said %q, %v", said.String(), err)
	}
}

// TestThePinIsOneLine: in the repository's own file that line alone changes.
func TestThePinIsOneLine(t *testing.T) {
	before, err := os.ReadFile("../../" + versions)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), versions)
	if err := os.WriteFile(file, before, 0o644); err != nil {
		t.Fatal(err)
	}
	const newer = "6.12.999-1~deb12u1"
	if err := pin(file, newer); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	var read struct{ Kernel string }
	if err != nil || yaml.Unmarshal(after, &read) != nil || read.Kernel != newer {
		t.Errorf("%v, it names %q", err, read.Kernel)
	}
	was, is := strings.Split(string(before), "\n"), strings.Split(string(after), "\n")
	changed := 0
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			changed++
		}
	}
	if len(was) != len(is) || changed != 1 {
		t.Errorf("%d lines changed, of %d there are %d", changed, len(was), len(is))
	}
	if err := os.WriteFile(file, []byte("debian:\n  kernel: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pin(file, newer); err == nil {
		t.Error("a file without the line was taken")
	}
}
