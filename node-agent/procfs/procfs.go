// Package procfs reads /proc, to tell a process from a later one that has its number.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNoProcess says that there is no such process, or that it has ended and is not reaped yet.
var ErrNoProcess = errors.New("it does not run")

// StartTicks returns field 22 of /proc/PID/stat: when the process started, in clock ticks since the
// machine's boot. The command in field 2 may hold spaces and parentheses too.
func StartTicks(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const state, start = 0, 19 // positions behind field 2
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat has no start time", pid)
	}
	if s := fields[state][0]; s == 'Z' || s == 'X' {
		return 0, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}
