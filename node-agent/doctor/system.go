package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	cgroups "github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail/filter"
)

func user(uid int) Finding {
	if uid != 0 {
		return no("root", "run as root, or with sudo", "not root (uid %d)", uid)
	}
	return ok("root", "uid 0")
}

// vmm reports which QEMU runs microVMs, or the error for which there is none, and whether the
// system calls that it makes are known.
func vmm(q hypervisor.QEMU, err error) Finding {
	if missing := (*hypervisor.Missing)(nil); errors.As(err, &missing) {
		return no("vmm", hypervisor.Remedy, "%v", missing.Why)
	}
	var f filter.Filter
	if err == nil {
		f, err = filter.For(q.Path())
	}
	if err != nil {
		return no("vmm", hypervisor.Remedy, "%v", err)
	}
	known, err := filter.Programs()
	if err != nil {
		return no("vmm", "run make build", "%v", err)
	}
	if !f.Known() {
		return note("vmm", "install a build that is known: Debian's "+strings.Join(known, ", "),
			"%v, is of no known build: it may make all but the dangerous system calls", q)
	}
	return ok("vmm", "%v", q)
}

func vsock(root string) Finding {
	const device = "dev/vhost-vsock"
	if !exists(root, device) {
		return no("vsock", "modprobe vhost_vsock", "no /%s", device)
	}
	if mode := read(root, "proc/sys/net/vsock/ns_mode"); mode != "" {
		return ok("vsock", "/%s, network namespaces: %s", device, mode)
	}
	return ok("vsock", "/%s", device)
}

// cgroup checks for the unified hierarchy, wherever it is mounted, and for its file that ends a
// whole cgroup.
func cgroup(root string) Finding {
	mount := unified(read(root, "proc/self/mountinfo"))
	if mount == "" {
		return no("cgroup", "mount -t cgroup2 none /sys/fs/cgroup", "no cgroup v2 is mounted")
	}
	if !canKill(filepath.Join(root, mount)) {
		return no("cgroup", "run Linux 5.14 or newer, as root",
			"cgroup v2 on %s has no cgroup.kill", mount)
	}
	controllers := strings.Fields(read(root, mount, "cgroup.controllers"))
	var missing []string
	for _, required := range cgroups.Required {
		if !slices.Contains(controllers, required) {
			missing = append(missing, required)
		}
	}
	if len(missing) > 0 {
		return note("cgroup",
			"boot with systemd.unified_cgroup_hierarchy=1, or start with --limits=best-effort, by which rlimits stand in",
			"v2 on %s with cgroup.kill, without the controllers %s: limits of VMMs cannot be enforced",
			mount, strings.Join(missing, ", "))
	}
	return ok("cgroup", "v2 on %s with cgroup.kill", mount)
}

func unified(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") &&
			len(fields) > 4 {
			return fields[4]
		}
	}
	return ""
}

// canKill looks for cgroup.kill below mount. The root of a hierarchy never has that file; if there
// is no child, canKill makes one.
func canKill(mount string) bool {
	if kills, _ := filepath.Glob(filepath.Join(mount, "*", "cgroup.kill")); len(kills) > 0 {
		return true
	}
	trial, err := os.MkdirTemp(mount, "fastiov-doctor-")
	if err != nil {
		return false
	}
	defer os.Remove(trial)
	return exists(trial, "cgroup.kill")
}

// memlock checks whether root may lock a microVM's memory, which vfio pins. Root raises the limit
// for each VMM, unless a container took that right away.
func memlock(root string) Finding {
	for line := range strings.Lines(read(root, "proc/self/limits")) {
		if limit, found := strings.CutPrefix(line, "Max locked memory"); found {
			if fields := strings.Fields(limit); len(fields) > 1 && fields[1] == "unlimited" {
				return ok("memlock", "unlimited")
			}
		}
	}
	const capSysResource = 24
	for line := range strings.Lines(read(root, "proc/self/status")) {
		if mask, found := strings.CutPrefix(line, "CapEff:"); found {
			if caps, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil &&
				caps&(1<<capSysResource) != 0 {
				return ok("memlock", "limited, and raised for each VMM")
			}
		}
	}
	return no("memlock", "ulimit -l unlimited, or grant CAP_SYS_RESOURCE",
		"locked memory is limited and this user may not raise the limit")
}

func hugePages(root string) Finding {
	const pool = "sys/kernel/mm/hugepages/hugepages-2048kB"
	if !exists(root, pool) {
		return note("huge pages", "", "this kernel has none of 2 MiB; microVMs use ordinary pages")
	}
	free, total := read(root, pool, "free_hugepages"), read(root, pool, "nr_hugepages")
	if total == "0" {
		return note("huge pages", "for faster DMA mapping write a number to /"+pool+"/nr_hugepages",
			"none of 2 MiB reserved; microVMs use ordinary pages")
	}
	return ok("huge pages", "%s of %s of 2 MiB free", free, total)
}

// arms lists what a kernel of ours does better than a stock one. It defers the zeroing of memory
// only behind an IOMMU that can make a VF's accesses snoop: AMD's can, and Intel's with snoop
// control, which is a bit of its extended capabilities.
func arms(root string) Finding {
	const (
		toAny = "iommu/parameters/defer_to_any" // there without any module of the kernel
		byArm = "fastiov drain, start the agent with barrier=strict and not d=table, " +
			"then fastiov drain --undo"
	)
	for _, s := range []struct{ name, safe, remedy string }{
		{"vfio_pci_core/parameters/hold_master", "Y", byArm}, {fastiovd.TableSwitch, "N", byArm},
		{toAny, "N", "write N to " + filepath.Join(fastiovd.Switches, toAny)},
	} {
		if now := read(root, fastiovd.Switches, s.name); now != "" && now != s.safe {
			return note("kernel arms", s.remedy,
				"devices may read memory before it is zeroed: %s is %s", filepath.Base(s.name), now)
		}
	}
	switch {
	case exists(root, "dev/fastiovd"):
	case exists(root, fastiovd.Switches, toAny):
		return note("kernel arms", "modprobe -a vfio-pci fastiovd, then start the agent again",
			"none: this is fastiov's kernel, but its module is not loaded")
	default:
		return note("kernel arms", "",
			"none: a stock kernel resets each VF when it is opened and zeroes memory when it is pinned")
	}
	const snoopControl = 1 << 7
	for _, c := range findCards(root) {
		ecap := read(root, devices, c.bdf, "iommu/intel-iommu/ecap")
		if has, err := strconv.ParseUint(ecap, 16, 64); c.network && err == nil &&
			has&snoopControl == 0 {
			return note("kernel arms", "use a slot or a machine whose IOMMU has it",
				"fastiovd, but memory is zeroed before a VF of %s gets it, as on a stock kernel: %s lacks snoop control",
				c.bdf, link(root, devices, c.bdf, "iommu"))
		}
	}
	return ok("kernel arms", "fastiovd")
}

func exists(path ...string) bool {
	_, err := os.Stat(filepath.Join(path...))
	return !errors.Is(err, fs.ErrNotExist)
}

// read returns the trimmed content of a file, or "" if there is none.
func read(path ...string) string {
	raw, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(raw))
}

// list returns the names in a directory, or nothing if there is none.
func list(path ...string) []string {
	entries, _ := os.ReadDir(filepath.Join(path...))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
