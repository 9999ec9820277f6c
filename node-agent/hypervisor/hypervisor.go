// Package hypervisor answers which QEMU is used, for testbeds, microVMs and the doctor's probe.
//
//	this machine's own, if its version is one that is good for VFs
//	else Debian's, in a prefix: a directory that stands for "/", with the program, the loader and
//	the libraries that it was linked for, and its firmware
//
// A builder makes the prefix (node-agent/image/build). Nothing in it is installed, and it runs on
// any machine with a kernel that is new enough: its own loader starts it. In a jail the prefix is
// the root directory, so there it is started like any other program.
package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Names by which a builder makes a prefix.
const (
	Thing    = "qemu"
	Patched  = "qemu-patched"  // by fastiov, to measure with; it is linked with no library
	Emulator = "qemu-emulator" // by fastiov, for testbeds, linked with libraries of this machine
)

// Name is that of the program, with which its messages begin.
const Name = "qemu-system-x86_64"

// What is in a prefix, and where. Program asks for Loader, which looks for libraries in Libraries.
const (
	Program   = "/usr/bin/" + Name
	Loader    = "/lib64/ld-linux-x86-64.so.2"
	Libraries = "/usr/lib/x86_64-linux-gnu"
)

// Firmware lists the directories in which the prefix's QEMU looks for firmware.
var Firmware = []string{"/usr/share/qemu", "/usr/share/seabios"}

// fixed lists, for each series, the first version in which registers of VFs can be reached where
// the firmware puts them above 4 GiB ("pcie_sriov: Fix broken MMIO accesses from SR-IOV VFs"). All
// series after the last have the fix.
var fixed = []version{{10, 0, 6}, {10, 1, 2}, {10, 2, 0}}

type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// isFixed says whether the version has the fix of its series.
func (v version) isFixed() bool {
	for _, first := range slices.Backward(fixed) {
		if slices.Compare(v[:2], first[:2]) >= 0 {
			return slices.Compare(v[:], first[:]) >= 0
		}
	}
	return false
}

// A QEMU is one that can be started. Its paths are below Root, which is "/" for this machine's own.
type QEMU struct {
	Version  string
	Root     string
	Program  string
	Firmware []string // directories
}

// A Prefix returns the directory of the prefix, and makes it if need be.
type Prefix func(ctx context.Context) (dir string, err error)

// Missing says why there is no QEMU.
type Missing struct{ Why error }

// Remedy says what to do about a Missing.
var Remedy = fmt.Sprintf("install QEMU %v or newer (of 10.1, %v or newer), "+
	"or have apt reach an archive of Debian", fixed[0], fixed[1])

func (m *Missing) Error() string { return m.Why.Error() + "; " + Remedy }

// Find returns the QEMU to use. It asks for the prefix only where this machine's own QEMU is
// missing or without the fix. Its error is a *Missing, or that of ctx.
func Find(ctx context.Context, prefix Prefix) (QEMU, error) {
	q, err := own(ctx)
	if err == nil {
		return q, nil
	}
	dir, err2 := prefix(ctx)
	if err2 == nil {
		q, err2 = In(ctx, dir)
	}
	if ctx.Err() != nil {
		return QEMU{}, context.Cause(ctx)
	}
	if err2 != nil {
		return QEMU{}, &Missing{fmt.Errorf("%w, and Debian's cannot be used: %w", err, err2)}
	}
	return q, nil
}

// own returns the QEMU that this machine has in its PATH.
func own(ctx context.Context) (QEMU, error) {
	path, err := exec.LookPath(Name)
	if err != nil {
		return QEMU{}, fmt.Errorf("there is no %s in PATH", Name)
	}
	if path, err = filepath.Abs(path); err != nil {
		return QEMU{}, err
	}
	q := QEMU{Root: "/", Program: path}
	if err := q.identify(ctx); err != nil {
		return QEMU{}, err
	}
	out, err := q.ask(ctx, "-L", "help")
	if err != nil {
		return QEMU{}, err
	}
	q.Firmware = slices.DeleteFunc(strings.Fields(out), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
	return q, nil
}

// In returns the QEMU of the prefix dir.
func In(ctx context.Context, dir string) (QEMU, error) {
	q := QEMU{Root: dir, Program: Program, Firmware: Firmware}
	return q, q.identify(ctx)
}

// Command returns the words of a command that starts QEMU outside of a jail.
func (q QEMU) Command(args ...string) []string {
	if q.Root == "/" {
		return append([]string{q.Program}, args...)
	}
	words := []string{q.Path()}
	if _, err := os.Stat(q.Root + Loader); err == nil {
		words = []string{q.Root + Loader, "--inhibit-cache", "--library-path",
			q.Root + Libraries, q.Path()}
	}
	for _, dir := range q.Firmware {
		words = append(words, "-L", q.Root+dir)
	}
	return append(words, args...)
}

// Path returns where the program lies on this machine.
func (q QEMU) Path() string { return filepath.Join(q.Root, q.Program) }

func (q QEMU) String() string { return fmt.Sprintf("QEMU %s, %s", q.Version, q.Path()) }

// identify asks the program for its version, and refuses one without the fix.
func (q *QEMU) identify(ctx context.Context) error {
	out, err := q.ask(ctx, "-version")
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(out, "\n")
	var v version
	if _, err := fmt.Sscanf(line, "QEMU emulator version %d.%d.%d", &v[0], &v[1],
		&v[2]); err != nil {
		return fmt.Errorf("%s has no known version (%q)", q.Path(), line)
	}
	if !v.isFixed() {
		return fmt.Errorf("%s is version %v, too old for VFs with registers above 4 GiB",
			q.Path(), v)
	}
	q.Version = v.String()
	return nil
}

func (q QEMU) ask(ctx context.Context, question ...string) (string, error) {
	words := q.Command(question...)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s does not run: %w", q.Path(), err)
	}
	return string(out), nil
}
