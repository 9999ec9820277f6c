package oci

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The resources of the unpacking process.
const (
	maxMemory  = 640 << 20 // its own memory, as RLIMIT_DATA counts it
	maxFile    = 8 << 30   // blocks are padded, so an image has more bytes than its contents
	maxFiles   = 32 + 2*maxLayers
	maxSeconds = 240 // of CPU time
	maxThreads = 512 // of all processes that unpack at the same time
	endedFirst = 900 // of 1000; the agent that starts it may be exempt
	// unpackerUser is used for nothing else: sandboxes have 1.9e9 and more, distributions and
	// containers less.
	unpackerUser = 1_899_999_998
)

// unpackerName is the name by which this program is called when it unpacks.
const unpackerName = "fastiov-unpack"

// The garbage collector stays well below the limit as long as the reachable memory allows it.
var unpackerEnv = []string{"GOMEMLIMIT=384MiB", "GOGC=100", "GOMAXPROCS=2", "GOTRACEBACK=none"}

// apart returns the namespaces into which the process is born; without root there are none.
func apart() *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
}

// confine gives up for good everything that unpacking does not need. It is called before a
// stranger's byte is read.
func confine() error {
	limits := map[int]uint64{
		unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_FSIZE: maxFile, unix.RLIMIT_CPU: maxSeconds,
		unix.RLIMIT_NOFILE: maxFiles, unix.RLIMIT_CORE: 0, unix.RLIMIT_MEMLOCK: 0,
		unix.RLIMIT_MSGQUEUE: 0,
	}
	if err := goFirst(); err != nil {
		return fmt.Errorf("its end where memory is short: %w", err)
	}
	root := os.Geteuid() == 0
	if root {
		limits[unix.RLIMIT_NPROC] = maxThreads
	}
	for what, most := range limits {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit %d: %w", what, err)
		}
	}
	if root {
		if err := drop(); err != nil {
			return err
		}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
	if errno == syscall.ENOTSUP { // only with cgo, and the product is built without it
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// goFirst has this process ended before all that it might be taken for, where the host has no
// memory left. An agent in a pod may have it so already, and nobody may take that back.
func goFirst() error {
	const file = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || now >= endedFirst {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(endedFirst)), 0)
}

// drop makes an empty directory the root, and changes to an unprivileged user.
func drop() error {
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	if err := syscall.Setresgid(unpackerUser, unpackerUser, unpackerUser); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if err := syscall.Setresuid(unpackerUser, unpackerUser, unpackerUser); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	return nil
}
