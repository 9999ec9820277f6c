package image

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// Another guest agent needs no mirror: of the guest, its base alone is made of packages. Where that
// has to be made anew and cannot be, the base used last serves; without one, the error says so.
func TestAnotherAgentNeedsNoMirror(t *testing.T) {
	away := errors.New("the mirror does not answer")
	unreachable := func(context.Context, string, func(string, ...any)) error { return away }
	reachable := func(_ context.Context, dir string, _ func(string, ...any)) error {
		modules := []module{{"b", []byte("module b")}, {"a", []byte("module a")}}
		return writeBase(dir, []byte("kernel"), modules)
	}
	dir := t.TempDir()
	base := func(pins string, build builder) recipe {
		return recipe{baseName, []string{pins}, 0, build}
	}

	_, err := open(t, dir).guest(t.Context(), []byte("init 1"), base("pins 1", unreachable))
	if !errors.Is(err, away) || !strings.Contains(err.Error(), "no former kernel") {
		t.Errorf("with an empty cache: %v", err)
	}
	initrds := map[string]bool{}
	for _, c := range []struct {
		what, init string
		of         recipe
	}{
		{"the first", "init 1", base("pins 1", reachable)},
		{"another agent", "init 2", base("pins 1", unreachable)},
		{"another agent, and another kernel", "init 3", base("pins 2", unreachable)},
	} {
		boot, err := open(t, dir).guest(t.Context(), []byte(c.init), c.of)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		kernel, _ := os.ReadFile(boot.Kernel)
		initrd, _ := os.ReadFile(boot.Initrd)
		if string(kernel) != "kernel" || checkInitrd(boot.Initrd) != nil {
			t.Errorf("%s: kernel %q, initrd: %v", c.what, kernel, checkInitrd(boot.Initrd))
		}
		for _, part := range []string{c.init, "module a", "/lib/modules/b.ko\n/lib/modules/a.ko"} {
			if !bytes.Contains(initrd, []byte(part)) {
				t.Errorf("%s: its initrd has no %q", c.what, part)
			}
		}
		initrds[boot.Initrd] = true
	}
	if len(initrds) != 3 {
		t.Errorf("three agents have %d initrds", len(initrds))
	}
}
