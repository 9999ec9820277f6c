// Command vmm goes into a room and becomes the VMM there. It is born as root in the sandbox's
// cgroup and pid namespace. It enters the room's namespaces, makes the node of its VFIO group, and
// gives up everything that a VMM has no use for, system calls last.
//
// The agent starts it as
//
//	fastiov-vmm USER LIMITS FIRST GROUP,DEVICE,VF PROGRAM ARGUMENT...
//
// LIMITS is RESOURCE=VALUE,…; FIRST is the number of the first of its own files: the room's
// network, IPC, UTS and mount namespaces, and the filter of system calls. The VMM inherits the
// files before those. Without a VF the fourth word is empty.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Its own files, in order.
const (
	network = iota
	ipc
	uts
	mounts
	filter
	files
)

func main() {
	// namespaces, credentials and filter belong to a thread: this one becomes the VMM
	runtime.LockOSThread()
	err := become(os.Args)
	fmt.Fprintln(os.Stderr, "fastiov-vmm:", err)
	os.Exit(1)
}

// become returns only if it fails.
func become(args []string) error {
	if len(args) < 7 {
		return fmt.Errorf("%d words, want 7 or more: the agent starts this program", len(args))
	}
	user, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("user: %w", err)
	}
	first, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("first file: %w", err)
	}
	calls, err := readFilter(first + filter)
	if err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	secret, err := hide(args[5])
	if err != nil {
		return fmt.Errorf("path of the program: %w", err)
	}
	if err := enter(first); err != nil {
		return err
	}
	if err := furnish(args[4], user); err != nil {
		return fmt.Errorf("VFIO group: %w", err)
	}
	if err := limit(args[2]); err != nil {
		return err
	}
	if err := drop(user); err != nil {
		return err
	}
	for fd := first; fd < first+files; fd++ {
		unix.Close(fd)
	}
	return execute(secret, args[6:], calls)
}

// enter changes to the room's namespaces. The mount namespace comes last, since it changes the root
// and the working directory too.
func enter(first int) error {
	// A thread that shares its root with others may not change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("root of its own: %w", err)
	}
	for _, n := range []struct{ file, kind int }{
		{network, unix.CLONE_NEWNET}, {ipc, unix.CLONE_NEWIPC}, {uts, unix.CLONE_NEWUTS},
		{mounts, unix.CLONE_NEWNS},
	} {
		if err := unix.Setns(first+n.file, n.kind); err != nil {
			return fmt.Errorf("namespace %#x of the room: %w", n.kind, err)
		}
	}
	return nil
}

// furnish makes the node of the only VFIO group that the VMM may open, and the directory that tells
// it the group of its VF.
func furnish(vf string, user int) error {
	if vf == "" {
		return nil
	}
	words := strings.Split(vf, ",")
	if len(words) != 3 {
		return fmt.Errorf("%q is no GROUP,DEVICE,VF", vf)
	}
	group, directory := words[0], words[2]
	device, err := strconv.Atoi(words[1])
	if err != nil {
		return err
	}
	if err := unix.Mknod(group, unix.S_IFCHR|0o600, device); err != nil {
		return fmt.Errorf("%s: %w", group, err)
	}
	if err := unix.Chown(group, user, user); err != nil {
		return fmt.Errorf("%s: %w", group, err)
	}
	if err := unix.Mkdir(directory, 0o755); err != nil {
		return fmt.Errorf("%s: %w", directory, err)
	}
	return unix.Symlink("../"+filepath.Base(group), directory+"/iommu_group")
}

// limit sets each RESOURCE=VALUE. A write beyond the limit of a file's size returns an error and
// does not kill the process.
func limit(limits string) error {
	signal.Ignore(unix.SIGXFSZ)
	for word := range strings.SplitSeq(limits, ",") {
		var resource int
		var value uint64
		if _, err := fmt.Sscanf(word, "%d=%d", &resource, &value); err != nil {
			return fmt.Errorf("limit %q: %w", word, err)
		}
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("limit %q: %w", word, err)
		}
	}
	return nil
}

// drop gives up this thread's privileges: all capabilities go with user 0, and none can come back.
func drop(user int) error {
	for c := 0; unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) == nil; c++ {
	}
	for _, call := range []struct {
		number uintptr
		id     uintptr
	}{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETRESGID, uintptr(user)},
		{unix.SYS_SETRESUID, uintptr(user)}} {
		if _, _, errno := unix.RawSyscall(call.number, call.id, call.id, call.id); errno != 0 {
			return fmt.Errorf("user %d: %w", user, errno)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return nil
}
