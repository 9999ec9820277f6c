package build

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/image"
)

// Another guest agent needs no mirror: of the guest, its base alone is made of packages. Where that
// has to be made anew and cannot be, the base used last serves; without one, the error says so.
func TestAnotherAgentNeedsNoMirror(t *testing.T) {
	away := errors.New("the mirror does not answer")
	unreachable := func(context.Context, string, func(string, ...any)) error { return away }
	reachable := func(_ context.Context, dir string, _ func(string, ...any)) error {
		modules := []module{{"b", []byte("module b")}, {"a", []byte("module a")}}
		return errors.Join(writeBase(dir, []byte("kernel"), modules),
			writeModules(dir, orderOf(image.RegionName), []module{{"c", []byte("module c")}}))
	}
	dir := t.TempDir()
	make := func(init, pins string, base builder) (image.Boot, error) {
		return open(t, dir).guest(t.Context(), []byte(init), []string{pins}, base)
	}

	_, err := make("init 1", "pins 1", unreachable)
	if !errors.Is(err, away) || !strings.Contains(err.Error(), "no former ") {
		t.Errorf("with an empty cache: %v", err)
	}
	initrds := map[string]bool{}
	for _, c := range []struct {
		what, init, pins string
		base             builder
	}{
		{"the first", "init 1", "pins 1", reachable},
		{"another agent", "init 2", "pins 1", unreachable},
		{"another agent, and another kernel", "init 3", "pins 2", unreachable},
	} {
		boot, err := make(c.init, c.pins, c.base)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		kernel, _ := os.ReadFile(boot.Kernel)
		initrd, _ := os.ReadFile(boot.Initrd)
		if string(kernel) != "kernel" || !bytes.Contains(initrd, []byte("TRAILER!!!")) {
			t.Errorf("%s: kernel %q, an initrd of %d bytes", c.what, kernel, len(initrd))
		}
		file, err := boot.Further(image.RegionName)
		region, _ := os.ReadFile(file)
		if err != nil || len(initrd)%4 > 0 || bytes.Contains(initrd, []byte("module c")) ||
			!bytes.Contains(region, []byte("module c")) {
			t.Errorf("%s: what a region needs is in no archive behind its initrd, of %d bytes: %v",
				c.what, len(initrd), err)
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
