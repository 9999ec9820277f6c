package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
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
	if now, err := startTicks(pid); err != nil || now != ticks {
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

// startTicks returns when the process pid started, in clock ticks since the machine's boot.
func startTicks(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, a name in parentheses, may contain spaces and parentheses.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	const start = 22 - 3
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat has no start time", pid)
	}
	if string(fields[0]) == "Z" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}
