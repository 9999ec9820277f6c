package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A group is the cgroup of one sandbox, of whichever version the host has. It is there before the
// runtime comes, and stays when neither runtime nor containerd does: so it ends a sandbox without
// them.
type group struct {
	path   string
	limits specs.LinuxResources
}

// A limit of CPU time is dealt out in such periods, as in Kubernetes; the kernel takes no smaller
// part of one.
const cpuPeriod, leastQuota = 100 * time.Millisecond, time.Millisecond

func (d *Driver) cgroup(spec sandbox.Spec) group {
	programs := spec.MemoryMiB - limits.SidecarMiB*len(spec.Sidecars) // the rest is their shims'
	memory, processes := int64(programs)<<20, int64(most)
	shares := uint64(min(max(spec.MemoryMiB*1024/256, 2), mostShares))
	if r := spec.CPU.Request; r > 0 { // it gets no more than its memory gives, which is bounded
		shares = min(shares, uint64(max(r*1024/1000, 2)))
	}
	limits := specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: &processes},
		CPU:    &specs.LinuxCPU{Shares: &shares},
	}
	if most := spec.CPU.Limit; most > 0 {
		period := uint64(cpuPeriod.Microseconds())
		quota := max(int64(most)*int64(period)/1000, leastQuota.Microseconds())
		limits.CPU.Period, limits.CPU.Quota = &period, &quota
	}
	const swap = "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if _, err := os.Stat(swap); err == nil || unified() {
		limits.Memory.Swap = &memory
	}
	return group{filepath.Join("/", d.Namespace, sandboxOf(spec.ID)), limits}
}

const cgroupMount = "/sys/fs/cgroup"

func unified() bool { return cgroups.Mode() == cgroups.Unified }

// The shims of all sandboxes have a cgroup of their own, beside them. In the agent's they would end
// when a service manager ends all that it finds there. No sandbox has that name.
const shims = ".shims"

// They come before the sandboxes, which end by them.
func (d *Driver) shims() group {
	shares := uint64(mostShares)
	return group{filepath.Join("/", d.Namespace, shims),
		specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}}
}

const mostShares = 1 << 18 // of the CPU's time, that the kernel takes

// make makes the cgroup, with its limits.
func (g group) make() error {
	if unified() {
		_, err := cgroup2.NewManager(cgroupMount, g.path, cgroup2.ToResources(&g.limits))
		return err
	}
	_, err := cgroup1.New(cgroup1.StaticPath(g.path), &g.limits)
	return err
}

const killWithin = 10 * time.Second

// kill ends all processes in the cgroup. One that is paused dies when it is resumed, here.
func (g group) kill() {
	if unified() {
		if _, err := os.Stat(filepath.Join(cgroupMount, g.path)); err != nil {
			return
		}
		if m, err := cgroup2.Load(g.path); err == nil {
			_ = m.Kill()
		}
		return
	}
	c, err := cgroup1.Load(cgroup1.StaticPath(g.path))
	if err != nil {
		return
	}
	// Those that the kernel did not stop in time need another round.
	for until := time.Now().Add(killWithin); time.Now().Before(until); {
		g.freeze()
		processes, err := c.Processes(cgroup1.Devices, true)
		for _, p := range processes {
			_ = unix.Kill(p.Pid, unix.SIGKILL)
		}
		_ = c.Thaw()
		g.thawBelow()
		if err != nil || g.dying(processes) {
			break
		}
	}
}

// network returns the network namespace of a process in the cgroup, or nil.
func (g group) network() *os.File {
	for _, pid := range g.processes() {
		if namespace, err := os.Open(filepath.Join("/proc", pid, "ns/net")); err == nil {
			return namespace
		}
	}
	return nil
}

func (g group) processes() []string {
	folder := filepath.Join(cgroupMount, "devices", g.path)
	if unified() {
		folder = filepath.Join(cgroupMount, g.path)
	}
	return strings.Fields(g.read(folder, "cgroup.procs"))
}

// awaitEnd waits for the processes in the cgroup, which have been told to end.
func (g group) awaitEnd() {
	for until := time.Now().Add(killWithin); time.Now().Before(until); {
		if len(g.processes()) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// freeze stops the processes in a cgroup of version 1, so that none is born, and none ends and
// leaves its number to another, while they are killed. It waits for a while: what is in the kernel
// stops once it comes out, and may not until it is killed.
func (g group) freeze() {
	const within, look = 500 * time.Millisecond, time.Millisecond
	file := filepath.Join(cgroupMount, "freezer", g.path, "freezer.state")
	if err := os.WriteFile(file, []byte("FROZEN"), 0); err != nil {
		return
	}
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(look) {
		state, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(state)) == "FROZEN" {
			return
		}
	}
}

// thawBelow resumes the programs that were paused each in its own cgroup, below this one.
func (g group) thawBelow() {
	below, _ := filepath.Glob(filepath.Join(cgroupMount, "freezer", g.path, "[0-9]*",
		"freezer.state"))
	for _, file := range below {
		_ = os.WriteFile(file, []byte("THAWED"), 0)
	}
}

// dying reports whether each of the processes has ended, or will without another signal.
func (g group) dying(processes []cgroup1.Process) bool {
	for _, p := range processes {
		fd, err := unix.PidfdOpen(p.Pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return false
		}
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		unix.Close(fd)
		if n == 0 {
			return false
		}
	}
	return true
}

// starved returns how many of its processes the kernel has killed for want of memory.
func (g group) starved() (n int) {
	if unified() { // which counts those in the cgroups below, too
		text, _ := os.ReadFile(filepath.Join(cgroupMount, g.path, "memory.events"))
		return killed(string(text))
	}
	return killed(g.read(filepath.Join(cgroupMount, "memory", g.path), "memory.oom_control"))
}

func killed(text string) (all int) {
	for line := range strings.Lines(text) {
		var n int
		_, _ = fmt.Sscanf(line, "oom_kill %d", &n)
		all += n
	}
	return all
}

// read returns what a file says of the group, whose folder that is, and of those of its programs.
func (g group) read(folder, file string) (all string) {
	below, _ := filepath.Glob(filepath.Join(folder, "[0-9]*", file))
	for _, one := range append([]string{filepath.Join(folder, file)}, below...) {
		text, _ := os.ReadFile(one)
		all += string(text)
	}
	return all
}

// remove removes the cgroup, if it is there and empty.
func (g group) remove() {
	if unified() {
		if m, err := cgroup2.Load(g.path); err == nil {
			_ = m.Delete()
		}
		return
	}
	if c, err := cgroup1.Load(cgroup1.StaticPath(g.path)); err == nil {
		_ = c.Delete()
	}
	unified := filepath.Join(cgroupMount, "unified", g.path) // runc makes them there, too
	below, _ := filepath.Glob(filepath.Join(unified, "[0-9]*"))
	for _, of := range append(below, unified) {
		_ = os.Remove(of)
	}
}

// cgroups lists the sandboxes that have a cgroup.
func (d *Driver) cgroups() (ids []string) {
	parent := filepath.Join(cgroupMount, "pids", d.Namespace)
	if unified() {
		parent = filepath.Join(cgroupMount, d.Namespace)
	}
	entries, _ := os.ReadDir(parent)
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != shims {
			ids = append(ids, entry.Name())
		}
	}
	return ids
}
