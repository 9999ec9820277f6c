package doctor

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
)

// sharedPages checks huge pages of shared memory. A guest's memory is shared, and gets huge pages
// only if the host allows them.
func sharedPages(root string) Finding {
	const file = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	_, after, _ := strings.Cut(read(root, file), "[")
	switch mode, _, _ := strings.Cut(after, "]"); mode {
	case "always", "within_size", "advise", "force":
		return ok("guest memory", "transparent huge pages: %s", mode)
	}
	return note("guest memory", "echo advise > /"+file,
		"no transparent huge pages: each page of 4 KiB is made and mapped for DMA by itself")
}

// leastRoom is the most that a hundred sandboxes write to their logs and records.
const leastRoom = 1 << 30

// roomIn checks the file system that contains path, or will contain it.
func roomIn(check, path, remedy string, least int64) Finding {
	free, total, err := room(path)
	const mib = 1 << 20
	switch {
	case err != nil:
		return note(check, remedy, "%s cannot be looked at: %v", path, err)
	case free < least:
		return note(check, remedy, "%s has %d of %d MiB free, and may need %d", path, free/mib,
			total/mib, least/mib)
	}
	return ok(check, "%s has %d of %d MiB free", path, free/mib, total/mib)
}

func room(path string) (free, total int64, err error) {
	for !exists(path) && path != filepath.Dir(path) {
		path = filepath.Dir(path)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(fs.Bavail) * fs.Bsize, int64(fs.Blocks) * fs.Bsize, nil
}

func runRoom() Finding {
	const remedy = "mount -o remount,size=2G /run, or give another file system by --run-dir"
	return roomIn("run directory", "/run", remedy, leastRoom)
}

func cache() Finding {
	dir, err := image.DefaultDir()
	if err != nil {
		return note("image cache", "set FASTIOV_CACHE to a directory", "%v", err)
	}
	remedy := "set FASTIOV_CACHE to a directory with more room, or remove " + dir +
		" while nothing runs"
	return roomIn("image cache", dir, remedy, image.CacheLimit)
}

// tracing checks who may trace processes. VMMs of one host have different users, and only that
// keeps them from reading each other's memory.
func tracing(root string) Finding {
	const file = "proc/sys/kernel/yama/ptrace_scope"
	switch scope := read(root, file); scope {
	case "":
		return note("tracing", "boot a kernel with Yama",
			"any process may trace others of its user")
	case "0":
		return note("tracing", "sysctl kernel.yama.ptrace_scope=1",
			"any process may trace others of its user")
	default:
		return ok("tracing", "restricted, scope %s", scope)
	}
}

// storms checks that /dev/kmsg can be read. The agent reads it to notice a VF whose accesses to
// memory the IOMMU refuses again and again.
func storms(root string) Finding {
	if !exists(root, "dev/kmsg") {
		return note("DMA storms", "give the agent /dev/kmsg and CAP_SYSLOG",
			"no /dev/kmsg: a guest whose DMA is refused again and again is not ended")
	}
	return ok("DMA storms", "seen in /dev/kmsg")
}

// mostVFs is the number of VFs whose settings fit into one answer of the kernel.
const mostVFs = 280

func manyVFs(root string) Finding {
	for _, c := range findCards(root) {
		if c.network && c.can > mostVFs {
			return note("VFs of a card", "use fewer of them by --vfs",
				"%s has %d VFs: the kernel tells the settings of about %d", c.bdf, c.can, mostVFs)
		}
	}
	return ok("VFs of a card", "no card has more than %d", mostVFs)
}
