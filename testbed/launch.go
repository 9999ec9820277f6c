package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/procfs"
)

// bootDeadline bounds the time from QEMU's start to an accepted ssh connection. It is generous,
// since emulated CPUs on a busy machine are slow.
const bootDeadline = 3 * time.Minute

// readyLine is the host's message when its sshd listens.
const readyLine = "testbed ready"

// A launch is one attempt to boot a host. Its methods are its phases, in order.
type launch struct {
	dir
	cfg   Config
	qemu  hypervisor.QEMU
	img   image.Boot
	owned bool // the host ends with the process that started it
	steps *steps

	sshPort int
	console net.Conn
	exited  chan struct{} // closed when QEMU has ended
	exitErr error         // valid after that
	rec     record
	host    *Host
}

// boot runs the phases and, if one fails, undoes them.
func (l *launch) boot(ctx context.Context) (*Host, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootDeadline,
		fmt.Errorf("no answer after %v", bootDeadline))
	defer cancel()
	defer l.steps.done()
	defer func() {
		if l.console != nil {
			l.console.Close()
		}
	}()
	l.sweep(false)
	err := l.prepare()
	if err == nil {
		err = l.start()
	}
	if err == nil {
		err = l.wait(ctx)
	}
	if err == nil {
		err = l.connect(ctx)
	}
	if err != nil {
		l.undo()
		return nil, diskFull(string(l.dir), err)
	}
	return l.host, nil
}

func (l *launch) undo() {
	if l.host != nil {
		l.host.Close()
	}
	if l.exited != nil {
		if p, err := openProcess(l.rec.PID, l.rec.StartTicks); err == nil {
			p.kill()
			p.close()
		}
		<-l.exited
	}
	l.sweep(true)
}

// prepare writes the files of the host's /share and finds free ports.
func (l *launch) prepare() error {
	if err := check(l.img); err != nil {
		return err
	}
	if err := os.MkdirAll(l.Share(), 0o700); err != nil {
		return err
	}
	if err := place(l.img.Kernel, filepath.Join(l.Share(), "vmlinuz")); err != nil {
		return err
	}
	if err := makeKey(l.key(), l.authorizedKeys()); err != nil {
		return err
	}
	if err := checkPorts(l.cfg.Forward); err != nil {
		return err
	}
	var err error
	l.sshPort, err = freePort()
	return err
}

// start runs QEMU with one end of its console in this process, and writes down QEMU's pid.
func (l *launch) start() error {
	out, err := os.Create(l.qemuLog())
	if err != nil {
		return err
	}
	defer out.Close()
	here, there, err := socketpair()
	if err != nil {
		return err
	}
	l.console = here
	defer there.Close()
	words := l.qemu.Command(qemuArgs(l.cfg, l.dir, l.img, l.sshPort)...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{there}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if l.owned {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	l.steps.step("booting (%s)", l.cfg)
	started := make(chan error, 1)
	l.exited = make(chan struct{})
	go func() {
		// The death signal is sent when the thread that forked ends, so that thread must be kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(l.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			l.exitErr = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	l.rec = record{PID: cmd.Process.Pid, QEMU: l.qemu.Version, Made: made(l.cfg.Kernel),
		SSHPort: l.sshPort, Config: l.cfg}
	if l.rec.StartTicks, err = procfs.StartTicks(l.rec.PID); err != nil {
		return l.died()
	}
	return l.store(l.rec)
}

// wait reads the console until the host is ready.
func (l *launch) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.console.Close() })
	defer stop()
	lines := bufio.NewScanner(l.console)
	for lines.Scan() {
		if strings.Contains(lines.Text(), readyLine) {
			return nil
		}
	}
	if ctx.Err() != nil {
		return l.failed(context.Cause(ctx))
	}
	<-l.exited
	return l.died()
}

func (l *launch) connect(ctx context.Context) error {
	l.host = &Host{dir: l.dir, rec: l.rec, ended: l.exited}
	if err := l.greet(ctx); err != nil {
		return l.failed(err)
	}
	// As on any machine, /boot holds the kernel that the host runs.
	const install = "mkdir -p /boot && ln -sf /share/vmlinuz /boot/vmlinuz-$(uname -r)"
	if code, err := l.host.Run(ctx, install, nil, io.Discard, io.Discard); err != nil || code != 0 {
		return l.failed(fmt.Errorf("it runs no command (exit code %d): %w", code, err))
	}
	l.host.rec.Booted = time.Since(l.steps.began).Seconds()
	return l.store(l.host.rec)
}

// greet dials the host. An sshd that has just started may drop its first callers, so greet tries
// again.
func (l *launch) greet(ctx context.Context) error {
	const patience, pause = 10 * time.Second, 250 * time.Millisecond
	for began := time.Now(); ; {
		err := l.host.dial(ctx)
		if err == nil || time.Since(began) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.exited:
			return err
		case <-time.After(pause):
		}
	}
}

// died returns an error with QEMU's last words, or else the console's.
func (l *launch) died() error {
	said := strings.TrimSpace(strings.TrimPrefix(lastLines(l.qemuLog(), 1), hypervisor.Name+": "))
	if strings.Contains(said, "Could not set up host forwarding rule") {
		return fmt.Errorf("a loopback port was taken while the testbed started: try again (%s)",
			said)
	}
	if said != "" {
		return fmt.Errorf("QEMU ended: %s", said)
	}
	if l.exitErr != nil {
		return l.failed(fmt.Errorf("QEMU ended: %w", l.exitErr))
	}
	return l.failed(errors.New("it switched itself off"))
}

// failed adds the console's last line to an error.
func (l *launch) failed(err error) error {
	tail := lastLines(l.Console(), 5)
	if tail == "" {
		tail = "(nothing)"
	}
	return fmt.Errorf(
		"the testbed host did not boot: %w; its console is kept in %s and ends with:\n%s", err,
		l.Console(), tail)
}

func lastLines(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(raw), "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func checkPorts(ports []int) error {
	for _, p := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return fmt.Errorf(
				"port %d of 127.0.0.1 is taken: end what listens there, or forward other ports", p)
		}
		l.Close()
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// socketpair returns two connected ends: one for this process, one for a child.
func socketpair() (here net.Conn, there *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(fds[0]), "console")
	defer ours.Close()
	there = os.NewFile(uintptr(fds[1]), "console")
	if here, err = net.FileConn(ours); err != nil {
		there.Close()
		return nil, nil, err
	}
	return here, there, nil
}
