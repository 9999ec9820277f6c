package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A tool is a command of this machine, or a pattern of its files, and the package that brings it.
type tool struct{ name, pkg string }

// kernelTools lists the tools that build a kernel. With ccache the next one, of a changed patch,
// takes minutes.
var kernelTools = []tool{
	{"gcc", "gcc"}, {"/usr/include/stdlib.h", "libc6-dev"}, {"/usr/include/libelf.h", "libelf-dev"},
	{"make", "make"}, {"flex", "flex"}, {"bison", "bison"}, {"bc", "bc"}, {"patch", "patch"},
	{"xz", "xz-utils"}, {"ccache", "ccache"},
}

// missing returns the packages of the tools that this machine lacks.
func missing(tools []tool) (packages []string) {
	for _, t := range tools {
		if filepath.IsAbs(t.name) {
			if found, _ := filepath.Glob(t.name); len(found) == 0 {
				packages = append(packages, t.pkg)
			}
		} else if _, err := lookPath(t.name); err != nil {
			packages = append(packages, t.pkg)
		}
	}
	return packages
}

// install has this machine's apt bring the tools that are missing. Where it cannot or must not, the
// error names their packages, and the command of fastiov that may.
func (b *Builder) install(ctx context.Context, say sayer, tools []tool, may string) error {
	packages := missing(tools)
	if len(packages) == 0 {
		return nil
	}
	names := strings.Join(packages, " ")
	if b.NoInstall {
		return fmt.Errorf("missing here: %s; install those packages, or run `fastiov %s` once",
			names, may)
	}
	apt := []string{"apt-get"}
	if os.Geteuid() != 0 {
		apt = []string{"sudo", "--", "apt-get"}
	}
	for _, program := range []string{apt[0], "apt-get"} {
		if _, err := lookPath(program); err != nil {
			return fmt.Errorf("missing here: %s, and %s to install it with; install those packages",
				names, program)
		}
	}
	say("installing %s", names)
	apt = append(apt, "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
	get := append([]string{"install", "--yes", "--no-install-recommends"}, packages...)
	for _, words := range [][]string{{"update"}, get} {
		if err := runApt(ctx, slices.Concat(apt, words)); err != nil {
			return fmt.Errorf("installing %s: %w; install it by hand", names, err)
		}
	}
	if still := missing(tools); len(still) > 0 {
		return fmt.Errorf("%s is installed, but what it brings is not found; is PATH complete?",
			strings.Join(still, " "))
	}
	return nil
}

// command returns a command that ends with this process, also where that is killed.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// runApt runs an apt that asks nothing. When ctx ends, apt is asked to end, not killed, because it
// changes the packages of this machine.
func runApt(ctx context.Context, words []string) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, complaint(stderr.Bytes()))
	}
	return nil
}
