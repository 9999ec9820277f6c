// Package cgroup keeps the processes of one sandbox together, so that ending them is one write that no fork can outrun.
//
// Each sandbox has a directory fastiov/<id> in the version 2 hierarchy. Its process is born inside it (clone3 with
// CLONE_INTO_CGROUP), so there is no moment at which the process exists and its cgroup does not know it. Ending is
// cgroup.kill, then waiting for the kernel to say that the last process is gone, then rmdir. By then every file the
// process had open is closed: a VF may be reset and leased again.
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

// Limits bound one sandbox. Those that the host does not offer are not set: see Root.Missing and
// Root.Unweighted. Where processors or disks are short, a sandbox's part of them is as its part of
// the memory.
type Limits struct {
	MemoryMiB int
	PIDs      int
}

// weight is 100 for 256 MiB, in the kernel's bounds.
func (l Limits) weight() int { return min(max(l.MemoryMiB*100/256, 1), 10000) }

// Required are the controllers without which a sandbox is not bounded. Those of processors and
// disks only share out what is short; a kernel may have the controller of disks and no weights.
var Required = []string{"memory", "pids"}

// needed are the files by which limits are set; the name of each begins with its controller's.
var needed = []string{"cpu.weight", "io.weight", "memory.max", "pids.max"}

// A Root is the directory under which the sandboxes' cgroups live.
type Root struct {
	path       string
	patience   time.Duration
	Missing    []string // required controllers that cannot be used: their limits are not enforced
	Why        error    // the first of them cannot
	Unweighted []string // controllers by whose weights nothing is shared out
}

// Open makes (or finds) the directory name in the host's version 2 hierarchy and turns on the controllers it needs.
func Open(name string) (*Root, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	top := mountOf(bufio.NewScanner(mounts))
	if top == "" {
		return nil, errors.New("no cgroup version 2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	r := &Root{path: filepath.Join(top, name), patience: patience}
	if err := os.Mkdir(r.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup %s cannot be made (root is needed, or a delegated hierarchy): %w", r.path, err)
	}
	r.look(top)
	return r, nil
}

// look turns on the controllers and notes those that cannot be used.
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

// enable turns on a controller below top and the root, which then has the file.
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

// mountOf returns where cgroup2 is mounted: /sys/fs/cgroup, or /sys/fs/cgroup/unified where version 1 is mounted beside it.
func mountOf(mountinfo *bufio.Scanner) string {
	for mountinfo.Scan() {
		before, after, _ := strings.Cut(mountinfo.Text(), " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			return fields[4]
		}
	}
	return ""
}

// ID is the kernel's number for the directory.
func (r *Root) ID() (uint64, error) {
	var s unix.Stat_t
	err := unix.Stat(r.path, &s)
	return s.Ino, err
}

// Remove takes the root directory away, if no sandbox is left in it.
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

// Group is the cgroup called name, whether it exists or not.
func (r *Root) Group(name string) *Group {
	return &Group{path: filepath.Join(r.path, name), patience: r.patience}
}

// Create makes a new cgroup; that it exists already is an error, because it then belongs to someone.
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
		swap = nil // a kernel without swap
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

// Events is what the kernel counted of the limits that the cgroup met, such as oom_kill, in a line for
// each controller that the host has.
func (g *Group) Events() string {
	said := ""
	for _, file := range []string{"memory.events", "pids.events"} {
		if text, err := os.ReadFile(filepath.Join(g.path, file)); err == nil {
			said += file + ": " + strings.Join(strings.Fields(string(text)), " ") + "\n"
		}
	}
	return said
}

// Kill ends every process of the cgroup, waits until they have released all they held, and removes
// the cgroup. It may run twice, also at the same time. Its error says that the cgroup stays.
func (g *Group) Kill() error {
	for range 3 { // a frozen process dies too; one just being born may need one more round
		if g.write("cgroup.kill", "1") != nil {
			break // gone already
		}
		if err := g.await("populated 0"); err != nil {
			return fmt.Errorf("%w; pids %v are still in it: see their /proc/PID/stack", err, g.PIDs())
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

// Freeze stops the cgroup's processes where they are and returns when all have stopped; Thaw lets them go on.
func (g *Group) Freeze() error { return g.freeze("1") }

// Thaw undoes Freeze. It bears that nothing is frozen.
func (g *Group) Thaw() error { return g.freeze("0") }

func (g *Group) freeze(value string) error {
	if err := g.write("cgroup.freeze", value); err != nil {
		return err
	}
	return g.await("frozen " + value)
}

const (
	patience = 30 * time.Second // a VMM that unpins much memory takes seconds to die
	lookAt   = time.Second      // whoever removes the cgroup may take its last event with it
)

// await returns when the kernel reports that state of the cgroup, or the cgroup has gone. The kernel
// wakes the poller of an open cgroup.events at each change since that file was last read.
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
