package jail

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox/jail/filter"
)

// refusedCall matches the kernel's log of a process that a filter killed.
var refusedCall = regexp.MustCompile(`type=1326 .*\bpid=(\d+) .*\bsyscall=(\d+) `)

// BySeccomp describes the end of a process that a filter killed.
const BySeccomp = "killed by seccomp"

// bySeccomp returns that a filter killed the process and, if the kernel's log has it, for which
// call. The log may lag a little.
func bySeccomp(pid int) string {
	const lag = time.Second
	if call, err := callOf(pid, time.Now().Add(lag)); err == nil {
		return fmt.Sprintf("%s: system call %s (%d)", BySeccomp, filter.Name(call), call)
	}
	return BySeccomp + " (SIGSYS)"
}

func callOf(pid int, until time.Time) (call int, err error) {
	log, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(log)
	call = -1
	for record := make([]byte, 8<<10); ; {
		n, err := unix.Read(log, record)
		switch {
		case err == nil:
			if p, c, ok := refused(string(record[:n])); ok && p == pid {
				call = c // the last record counts: the pid may have had a former owner
			}
		case err == unix.EPIPE || err == unix.EINTR: // records were overwritten before we read them
		case err == unix.EAGAIN && call >= 0:
			return call, nil
		case err == unix.EAGAIN && time.Now().Before(until):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(log), Events: unix.POLLIN}},
				int(time.Until(until).Milliseconds())+1)
		default:
			return 0, errors.New("the kernel's log says nothing of it")
		}
	}
}

// refused parses a record of the kernel's log, as in "5,1234,5678,-;audit: type=1326 …". Only
// records of the kernel itself count, since a process can write to the log too.
func refused(record string) (pid, call int, ok bool) {
	var priority int
	if _, err := fmt.Sscanf(record, "%d,", &priority); err != nil || priority>>3 != 0 {
		return 0, 0, false
	}
	m := refusedCall.FindStringSubmatch(record)
	if m == nil {
		return 0, 0, false
	}
	pid, errPID := strconv.Atoi(m[1])
	call, errCall := strconv.Atoi(m[2])
	return pid, call, errPID == nil && errCall == nil
}
