// Package driver is an example of a sandbox driver. A sandbox is a process of this machine in a
// cgroup. Its program listens on the address of its NIC, and may do whatever its agent may.
package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

// A Driver starts processes that run Command, told by ADDRESS and PORT where to listen.
type Driver struct {
	Command []string
	Root    *cgroup.Root
}

// A process is one sandbox.
type process struct {
	*life.Life
	host   string
	group  *cgroup.Group
	logs   *tail.Log
	output sync.WaitGroup // for what is read from the process
}

// Start implements sandbox.Driver.
func (d Driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	if spec.NIC == nil {
		return nil, errors.New("the example driver needs a path to the network")
	}
	defer tl.Begin(timeline.VMM)()
	group, err := d.Root.Create(spec.ID, cgroup.Limits{MemoryMiB: spec.MemoryMiB, PIDs: 256})
	if err != nil {
		return nil, err
	}
	host := spec.NIC.Address.Addr().String()
	p := &process{Life: life.New(), host: host, group: group, logs: tail.New()}
	err = p.Begin(ctx, func() error { return p.boot(ctx, spec, d.Command, owned) })
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	return p, nil
}

func (p *process) boot(ctx context.Context, spec sandbox.Spec, command []string,
	owned func(sandbox.Record) error) error {
	rec, gate, err := p.launch(spec, command)
	go func() {
		<-p.Context().Done()
		killed := p.group.Kill()
		p.HangUp()
		p.output.Wait()
		p.logs.End()
		p.Over(func(cause error) error { return errors.Join(cause, killed) })
	}()
	if err != nil {
		return err
	}
	if err := owned(rec); err != nil {
		return err
	}
	_, _ = io.WriteString(gate, "\n") // an end of the process is noticed below
	for {
		if conn, err := p.Dial(ctx, spec.Program.Listens()); err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-p.Context().Done():
			return p.Cause()
		}
	}
}

// launch starts a process that becomes the program when a line comes through the gate.
func (p *process) launch(spec sandbox.Spec, command []string) (
	rec sandbox.Record, gate io.Writer, err error) {
	dir, err := p.group.Open()
	if err != nil {
		return rec, nil, err
	}
	defer dir.Close()
	wait := []string{"-c", `read -r line && exec "$@" </dev/null`, "sh"}
	cmd := exec.Command("/bin/sh", append(wait, command...)...)
	cmd.Env = []string{"ADDRESS=" + p.host, fmt.Sprint("PORT=", spec.Program.Listens())}
	for name, value := range spec.Program.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	gate, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(errIn, errOut, errErr, cmd.Start()); err != nil {
		return rec, nil, err
	}
	p.output.Go(func() { p.logs.Copy("stdout", stdout) })
	p.output.Go(func() { p.logs.Copy("stderr", stderr) })
	go func() {
		p.output.Wait()
		p.End(fmt.Errorf("its process has ended: %v", cmd.Wait()))
	}()
	ticks, err := procfs.StartTicks(cmd.Process.Pid)
	return sandbox.Record{Spec: spec, PID: cmd.Process.Pid, StartTicks: ticks}, gate, err
}

func (p *process) Dial(ctx context.Context, port int) (net.Conn, error) {
	at := net.JoinHostPort(p.host, fmt.Sprint(port))
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	return p.Tie(conn), nil
}

func (p *process) Pause(context.Context) error  { p.HangUp(); return p.group.Freeze() }
func (p *process) Resume(context.Context) error { return p.group.Thaw() }
func (p *process) Logs() *tail.Log              { return p.logs }

// Adopt implements sandbox.Driver. The output of a process goes to the agent that started it.
func (d Driver) Adopt(context.Context, sandbox.Record) (sandbox.Sandbox, error) {
	return nil, errors.New("a process of the example driver does not outlive its agent")
}

// End implements sandbox.Driver.
func (d Driver) End(spec sandbox.Spec) { _ = d.Root.Group(spec.ID).Kill() }

// Leftovers implements sandbox.Driver.
func (d Driver) Leftovers(live map[string]bool) (left []string) {
	for _, id := range d.Root.Names() {
		if !live[id] {
			left = append(left, "cgroup "+id)
		}
	}
	return left
}
