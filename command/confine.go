package command

import (
	"errors"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// startConfined starts a process that can gain no privilege by what it executes.
func startConfined(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread keeps what it has given up, and ends with this goroutine
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// confine gives up what an invoker that is a process of its own has no use for: to leave its memory to
// others by a core, by ptrace or by /proc, and files that others can read.
func confine() error {
	unix.Umask(0o077)
	return errors.Join(
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
