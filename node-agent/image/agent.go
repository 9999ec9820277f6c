package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	modulePath  = "github.com/fastiov/fastiov"
	agentSource = modulePath + "/node-agent/guest/init"
	agentName   = "fastiov-init"
)

// guestAgent reads the guest agent's program: the file fastiov-init beside the running program, where a build or an installation puts it.
// A test's program stands alone but runs in the module's source, so there the agent is built.
func guestAgent(ctx context.Context) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Join(filepath.Dir(self), agentName)
	program, err := os.ReadFile(beside)
	if !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	if out, err := exec.CommandContext(ctx, "go", "list", "-m").Output(); err != nil || strings.TrimSpace(string(out)) != modulePath {
		return nil, fmt.Errorf("the guest agent %s is missing; run make build", beside)
	}
	dir, err := os.MkdirTemp("", "fastiov-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, agentName)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, agentSource)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest agent: %w: %s", err, lastLine(out))
	}
	return os.ReadFile(built)
}
