package testbed

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/procfs"
)

// A process is a handle of one process. It never means another process that gets the same pid
// later.
type process struct{ fd int }

// openProcess opens the process pid if it started at ticks.
func openProcess(pid int, ticks uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	if now, err := procfs.StartTicks(pid); err != nil || now != ticks {
		unix.Close(fd)
		return nil, unix.ESRCH
	}
	return &process{fd}, nil
}

func (p *process) kill() { _ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) }

func (p *process) close() { unix.Close(p.fd) }

// gone waits until the process has ended, for d at most.
func (p *process) gone(d time.Duration) bool {
	end := time.Now().Add(d)
	for {
		left := max(time.Until(end), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}},
			int(left.Milliseconds()))
		if n > 0 {
			return true
		}
		if !errors.Is(err, unix.EINTR) && left == 0 {
			return false
		}
	}
}
