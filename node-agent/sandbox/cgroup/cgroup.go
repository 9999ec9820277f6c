// Package cgroup keeps the processes of one sandbox together, so that one write ends them all and
// no fork can escape it.
//
// Each sandbox has a directory fastiov/<id> in the version 2 hierarchy. Its process is born inside
// that cgroup (clone3 with CLONE_INTO_CGROUP), so it is never outside. An end is a write to
// cgroup.kill, a wait until the kernel reports that the last process is gone, and an rmdir. By then
// every file that the process had open is closed, so its VF may be reset and leased again.
package cgroup

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound one sandbox. Limits that the host does not offer are not set: see Root.Missing and
// Root.Unweighted. When processors or disks are short, each sandbox gets a part in proportion to
// its memory.
type Limits struct {
	MemoryMiB int
	PIDs      int
}

// weight returns 100 for 256 MiB, within the kernel's bounds.
func (l Limits) weight() int { return min(max(l.MemoryMiB*100/256, 1), 10000) }

// Required lists the controllers without which a sandbox is not bounded. The controllers of
// processors and disks only divide what is short; a kernel may have the controller of disks without
// weights.
var Required = []string{"memory", "pids"}

// needed lists the files that set limits. Each name begins with its controller's name.
var needed = []string{"cpu.weight", "io.weight", "memory.max", "pids.max"}

// A Root is the parent directory of the sandboxes' cgroups.
type Root struct {
	path     string
	patience time.Duration
	// required controllers that cannot be used, so their limits are not enforced
	Missing    []string
	Why        error    // why the first of them cannot be used
	Unweighted []string // controllers whose weights cannot be used
}

// Open makes or finds the directory name in the host's version 2 hierarchy and turns on the
// controllers it needs.
func Open(name string) (*Root, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	top := mountOf(bufio.NewScanner(mounts))
	if top == "" {
		return nil, errors.New(
			"no cgroup version 2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	r := &Root{path: filepath.Join(top, name), patience: patience}
	if err := os.Mkdir(r.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf(
			"cgroup %s cannot be made (root is needed, or a delegated hierarchy): %w", r.path, err)
	}
	r.look(top)
	return r, nil
}

// look turns on the controllers and records those that cannot be used.
func (r *Root) look(top string) {
	for _, file := range needed {
		controller, _, _ := strings.Cut(file, ".")
		switch err := r.enable(top, controller, file); {
		case err == nil:
		case slices.Contains(Required, controller):
			r.Missing = append(r.Missing, controller)
			r.Why = cmp.Or(r.Why, err)
		default:
			r.Unweighted = append(r.Unweighted, controller)
		}
	}
}

// enable turns on a controller in top, which gives the root the file, and in the root.
func (r *Root) enable(top, controller, file string) error {
	for _, dir := range []string{top, r.path} {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil {
			return err
		}
	}
	path := filepath.Join(r.path, file)
	if err := unix.Access(path, unix.W_OK); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// mountOf returns where cgroup2 is mounted: /sys/fs/cgroup, or /sys/fs/cgroup/unified beside
// version 1.
func mountOf(mountinfo *bufio.Scanner) string {
	for mountinfo.Scan() {
		before, after, _ := strings.Cut(mountinfo.Text(), " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") &&
			len(fields) > 4 {
			return fields[4]
		}
	}
	return ""
}

// ID returns the kernel's number of the directory.
func (r *Root) ID() (uint64, error) {
	var s unix.Stat_t
	err := unix.Stat(r.path, &s)
	return s.Ino, err
}

// Remove removes the root directory if no sandbox is left in it.
func (r *Root) Remove() { _ = unix.Rmdir(r.path) }

// Names lists the cgroups under the root.
func (r *Root) Names() []string {
	entries, _ := os.ReadDir(r.path)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// Group returns the cgroup called name, whether it exists or not.
func (r *Root) Group(name string) *Group {
	return &Group{path: filepath.Join(r.path, name), patience: r.patience}
}

// Create makes a new cgroup. If it exists already, that is an error, because it belongs to another
// sandbox.
func (r *Root) Create(name string, limits Limits) (*Group, error) {
	g := r.Group(name)
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup of sandbox %s: %w", name, err)
	}
	if err := g.limit(limits, slices.Concat(r.Missing, r.Unweighted)); err != nil {
		return nil, fmt.Errorf("limits of sandbox %s: %w", name, errors.Join(err, g.Kill()))
	}
	return g, nil
}

func (g *Group) limit(limits Limits, missing []string) error {
	set := func(file, value string) error {
		controller, _, _ := strings.Cut(file, ".")
		if slices.Contains(missing, controller) {
			return nil
		}
		return g.write(file, value)
	}
	weight := strconv.Itoa(limits.weight())
	swap := set("memory.swap.max", "0")
	if errors.Is(swap, fs.ErrNotExist) {
		swap = nil // this kernel has no swap
	}
	return errors.Join(
		set("memory.max", strconv.Itoa(limits.MemoryMiB<<20)), swap,
		set("memory.oom.group", "1"),
		set("pids.max", strconv.Itoa(limits.PIDs)),
		set("cpu.weight", weight),
		set("io.weight", weight),
	)
}

// A Group is the cgroup of one sandbox.
type Group struct {
	path     string
	patience time.Duration
}

func (g *Group) write(file, value string) error {
	return os.WriteFile(filepath.Join(g.path, file), []byte(value), 0)
}

// Open returns the directory, for syscall.SysProcAttr.CgroupFD.
func (g *Group) Open() (*os.File, error) {
	fd, err := unix.Open(g.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: g.path, Err: err}
	}
	return os.NewFile(uintptr(fd), g.path), nil
}

// PIDs lists the processes in the cgroup.
func (g *Group) PIDs() []int {
	text, _ := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Events returns what the kernel counted when the cgroup met its limits, such as oom_kill, in a
// line for each controller of the host.
func (g *Group) Events() string {
	said := ""
	for _, file := range []string{"memory.events", "pids.events"} {
		if text, err := os.ReadFile(filepath.Join(g.path, file)); err == nil {
			said += file + ": " + strings.Join(strings.Fields(string(text)), " ") + "\n"
		}
	}
	return said
}

// Kill ends every process of the cgroup, waits until they have released everything, and removes the
// cgroup. It may run twice, also at the same time. An error means that the cgroup is still there.
func (g *Group) Kill() error {
	// a frozen process dies too; a process that is just being born may need one more round
	for range 3 {
		if g.write("cgroup.kill", "1") != nil {
			break // it has gone already
		}
		if err := g.await("populated 0"); err != nil {
			return fmt.Errorf("%w; pids %v are still in it: see their /proc/PID/stack",
				err, g.PIDs())
		}
		if err := unix.Rmdir(g.path); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
	}
	if err := unix.Rmdir(g.path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cgroup %s stays: %w; remove it with rmdir", g.path, err)
	}
	return nil
}

// Freeze stops the cgroup's processes and returns when all have stopped. Thaw lets them go on.
func (g *Group) Freeze() error { return g.freeze("1") }

// Thaw undoes Freeze. If nothing is frozen, it does nothing.
func (g *Group) Thaw() error { return g.freeze("0") }

func (g *Group) freeze(value string) error {
	if err := g.write("cgroup.freeze", value); err != nil {
		return err
	}
	return g.await("frozen " + value)
}

const (
	patience = 30 * time.Second // a VMM that unpins much memory takes seconds to die
	lookAt   = time.Second      // if somebody else removes the cgroup, its last event may be lost
)

// await returns when the kernel reports that state of the cgroup, or when the cgroup has gone. The
// kernel wakes the poller of an open cgroup.events at each change since the file was last read.
func (g *Group) await(state string) error {
	events, err := os.Open(filepath.Join(g.path, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer events.Close()
	raw, err := events.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 256)
	reached := func(fd uintptr) bool {
		n, err := unix.Pread(int(fd), buf, 0)
		return err != nil || strings.Contains(string(buf[:n]), state)
	}
	for begin := time.Now(); time.Since(begin) < g.patience; {
		if err := events.SetReadDeadline(time.Now().Add(lookAt)); err != nil {
			return err
		}
		if err := raw.Read(reached); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return fmt.Errorf("cgroup %s is not %q after %s", g.path, state, g.patience)
}
