// Package cgroup keeps the processes of one sandbox together, so that ending them is one write that no fork can outrun.
//
// Each sandbox has a directory fastiov/<id> in the version 2 hierarchy. Its process is born inside it (clone3 with
// CLONE_INTO_CGROUP), so there is no moment at which the process exists and its cgroup does not know it. Ending is
// cgroup.kill, then waiting for the kernel to say that the last process is gone, then rmdir. By then every file the
// process had open is closed: a VF may be reset and leased again.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits bound one sandbox. Those whose controller the host does not offer are not set: see Root.Missing.
type Limits struct {
	MemoryMiB int
	PIDs      int
}

// A Root is the directory under which the sandboxes' cgroups live.
type Root struct {
	path    string
	Missing []string // controllers that the host does not offer in version 2: their limits are not enforced
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
	r := &Root{path: filepath.Join(top, name)}
	if err := os.Mkdir(r.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup %s cannot be made (root is needed, or a delegated hierarchy): %w", r.path, err)
	}
	for _, controller := range []string{"memory", "pids"} {
		enable := []byte("+" + controller)
		if os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), enable, 0) != nil ||
			os.WriteFile(filepath.Join(r.path, "cgroup.subtree_control"), enable, 0) != nil {
			r.Missing = append(r.Missing, controller)
		}
	}
	return r, nil
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
func (r *Root) Group(name string) *Group { return &Group{path: filepath.Join(r.path, name)} }

// Create makes a new cgroup; that it exists already is an error, because it then belongs to someone.
func (r *Root) Create(name string, limits Limits) (*Group, error) {
	g := r.Group(name)
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup of sandbox %s: %w", name, err)
	}
	missing := strings.Join(r.Missing, " ")
	set := func(controller, file, value string) error {
		if strings.Contains(missing, controller) {
			return nil
		}
		return g.write(file, value)
	}
	err := errors.Join(
		set("memory", "memory.max", strconv.Itoa(limits.MemoryMiB<<20)),
		set("memory", "memory.oom.group", "1"),
		set("pids", "pids.max", strconv.Itoa(limits.PIDs)),
	)
	if err != nil {
		g.Kill()
		return nil, fmt.Errorf("limits of sandbox %s: %w", name, err)
	}
	return g, nil
}

// A Group is the cgroup of one sandbox.
type Group struct{ path string }

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

// Kill ends every process of the cgroup, waits until they have released all they held, and removes the cgroup. It cannot fail
// and may run twice, also at the same time.
func (g *Group) Kill() {
	for range 3 { // a frozen process dies too; one that was just being born may make one more round necessary
		if g.write("cgroup.kill", "1") != nil {
			break // gone already
		}
		g.await("populated 0")
		if err := unix.Rmdir(g.path); err == nil || errors.Is(err, unix.ENOENT) {
			return
		}
	}
	_ = unix.Rmdir(g.path)
}

// Freeze stops the cgroup's processes where they are and returns when all have stopped; Thaw lets them go on.
func (g *Group) Freeze() error { return g.freeze("1") }

// Thaw undoes Freeze. It bears that nothing is frozen.
func (g *Group) Thaw() error { return g.freeze("0") }

func (g *Group) freeze(value string) error {
	if err := g.write("cgroup.freeze", value); err != nil {
		return err
	}
	g.await("frozen " + value)
	return nil
}

// await blocks until the kernel reports that state of the cgroup, or the cgroup has gone. The watch is set before the first look: no
// event is missed.
func (g *Group) await(state string) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return
	}
	notify := os.NewFile(uintptr(fd), "inotify")
	defer notify.Close()
	events := filepath.Join(g.path, "cgroup.events")
	if _, err := unix.InotifyAddWatch(fd, events, unix.IN_MODIFY|unix.IN_DELETE_SELF); err != nil {
		return
	}
	for buf := make([]byte, 4096); ; {
		text, err := os.ReadFile(events)
		if err != nil || strings.Contains(string(text), state) {
			return
		}
		if _, err := notify.Read(buf); err != nil {
			return
		}
	}
}
