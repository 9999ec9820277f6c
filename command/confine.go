package command

import (
	"errors"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// startConfined starts a process that can gain no privilege by the programs it executes.
func startConfined(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		// It is never unlocked: the thread keeps what it has given up, and ends with this
		// goroutine.
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// confine gives up rights that an invoker in a process of its own does not need: to leave its
// memory to others by a core, by ptrace or by /proc, and to make files that others can read.
func confine() error {
	unix.Umask(0o077)
	return errors.Join(
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
