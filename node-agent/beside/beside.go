// Package beside finds our other programs, which a build or an installation puts beside the running
// one.
package beside

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

const module = "github.com/fastiov/fastiov"

// A Program is a file name and the folder of the module that it is built from.
type Program struct{ Name, source string }

var (
	Init     = Program{"fastiov-init", "node-agent/guest/init"}      // process 1 of a guest
	Launcher = Program{"fastiov-vmm", "node-agent/sandbox/jail/vmm"} // becomes the VMM of a sandbox
	CNI      = Program{"fastiov-cni", "cmd/fastiov-cni"}             // the CNI plugin
)

// Open opens the program. A test's program has no other programs beside it, but it runs in the
// module's source; so for a test the program is built, with failpoints if the test has them, and
// deleted when it is closed. Otherwise nothing is built: the agent would build whatever lies in its
// working directory and run that as root.
func (p Program) Open(ctx context.Context) (*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(self), p.Name)
	program, err := os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	if flag.Lookup("test.v") == nil { // not a test: every test defines that flag
		return nil, fmt.Errorf(
			"the program %s is missing; install the one of this release there, or run make build",
			path)
	}
	return p.build(ctx)
}

func (p Program) build(ctx context.Context) (*os.File, error) {
	dir, err := os.MkdirTemp("", "fastiov-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, p.Name)
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built}
	if failpoint.Enabled {
		args = append(args, "-tags", "failpoint")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, module+"/"+p.source)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("building %s: %w: %s", p.Name, err, lines[len(lines)-1])
	}
	return os.Open(built)
}
