package jail

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A process is the VMM of a cell. This agent has started or adopted it.
type process struct {
	pid   int
	ticks uint64
	done  chan struct{} // closed when the process has ended, and a child has been reaped
	how   string        // how it ended; valid once done is closed
	pidfd *os.File      // of an adopted process
}

func (p *process) release() {
	if p.pidfd != nil {
		p.pidfd.Close()
	}
}

// child returns the started process of cmd.
func child(cmd *exec.Cmd) *process {
	p := &process{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState says how it ended
		p.how = cmd.ProcessState.String()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
			status.Signal() == unix.SIGSYS {
			p.how = bySeccomp(p.pid)
		}
		close(p.done)
	}()
	return p
}

// Adopt takes over the cell of a process that a former agent started, if its pid, start time and
// cgroup agree with the record.
func (h *Host) Adopt(rec sandbox.Record) (*Cell, error) {
	fd, err := unix.PidfdOpen(rec.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", rec.PID, err)
	}
	p := &process{pid: rec.PID, done: make(chan struct{}), pidfd: os.NewFile(uintptr(fd), "pidfd")}
	group := h.root.Group(rec.Spec.ID)
	uid, err := h.verify(rec, group.PIDs())
	if err != nil {
		p.release()
		return nil, err
	}
	c := &Cell{
		User: uid, host: h, id: rec.Spec.ID, group: group, slot: &slot{user: uid},
		pci: rec.Spec.PCI(), proc: p,
	}
	h.occupy(c.id, uid)
	p.ticks = rec.StartTicks
	go p.watch()
	return c, nil
}

// verify compares the process with the record. The caller has opened the process's pidfd, so the
// pid cannot pass to another process unnoticed.
func (h *Host) verify(rec sandbox.Record, members []int) (uid int, err error) {
	ticks, err := procfs.StartTicks(rec.PID)
	if err != nil {
		return 0, err
	}
	if ticks != rec.StartTicks {
		return 0, fmt.Errorf(
			"process %d started at tick %d, the record says %d: another process has that number now",
			rec.PID, ticks, rec.StartTicks)
	}
	if !slices.Contains(members, rec.PID) {
		return 0, fmt.Errorf("process %d is not in the cgroup of sandbox %s", rec.PID, rec.Spec.ID)
	}
	uid = userOf(rec.PID)
	if !isUser(uid) {
		return 0, fmt.Errorf("process %d runs as user %d, which is none of the sandboxes'",
			rec.PID, uid)
	}
	return uid, nil
}

// watch waits for the end of a process that is not our child: then its pidfd becomes readable.
func (p *process) watch() {
	defer close(p.done)
	p.how = "ended"
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	})
}

// Record returns the journal's record of the cell's process.
func (c *Cell) Record(spec sandbox.Spec) sandbox.Record {
	return sandbox.Record{Spec: spec, PID: c.proc.pid, StartTicks: c.proc.ticks}
}

// Done is closed when the process has ended for any reason. It is nil if no process was started.
func (c *Cell) Done() <-chan struct{} {
	if c.proc == nil {
		return nil
	}
	return c.proc.done
}

// How describes how the process ended. It is valid after Done.
func (c *Cell) How() string {
	if c.proc == nil {
		return "never started"
	}
	return c.proc.how
}

// userOf returns the real user of a process, or -1.
func userOf(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := bytes.Cut(status, []byte("\nUid:"))
	fields := bytes.Fields(after)
	if len(fields) == 0 {
		return -1
	}
	uid, err := strconv.Atoi(string(fields[0]))
	if err != nil {
		return -1
	}
	return uid
}

// PID returns the cell's process.
func (c *Cell) PID() int { return c.proc.pid }
