package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A daemon is a containerd of the driver's own, where none runs. It ends with the agent; containers
// do not, and the next agent's daemon finds them. It holds no images, so all that it writes is in
// the run directory.
type daemon struct {
	address string
	dir     string
	log     *slog.Logger
	closing chan struct{}
	ended   sync.WaitGroup
}

// Of containerd's plugins, those that only Kubernetes and images need are disabled.
const config = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime",
  "io.containerd.cri.v1.images", "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.restart", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
`

func startDaemon(dir string, log *slog.Logger) (*daemon, error) {
	program, err := exec.LookPath("containerd")
	if err == nil {
		_, err = exec.LookPath("containerd-shim-runc-v2")
	}
	if err != nil {
		return nil, fmt.Errorf(
			"%w; install containerd (on Debian: apt-get install containerd runc)", err)
	}
	d := &daemon{dir: dir, address: filepath.Join(dir, "containerd.sock"), log: log,
		closing: make(chan struct{})}
	if n := len(d.address) + len(".ttrpc"); n > longest {
		return nil, fmt.Errorf("%s.ttrpc: a socket's path has at most %d bytes, this one has %d:"+
			" choose a shorter --run-dir", d.address, longest, n)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(config, filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.address)
	if err := os.WriteFile(d.file(), []byte(text), 0o600); err != nil {
		return nil, err
	}
	d.ended.Go(func() { d.keep(program) })
	return d, nil
}

// bundlesDir returns where a daemon in dir has what it makes of containers.
func bundlesDir(dir, namespace string) string {
	return filepath.Join(dir, "state", "io.containerd.runtime.v2.task", namespace)
}

// await waits, until ctx ends, for containerd to have nothing of a container any more. After a shim
// that was killed it cleans up by itself; if it ended meanwhile, the root would stay mounted.
func (d *daemon) await(ctx context.Context, namespace, id string) {
	bundle := filepath.Join(bundlesDir(d.dir, namespace), id)
	for ctx.Err() == nil {
		if _, err := os.Lstat(bundle); err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	d.log.Warn("containerd has not cleaned up", "container", id, "left", bundle)
	unmount(filepath.Join(bundle, "rootfs"))
}

func (d *daemon) file() string { return filepath.Join(d.dir, "config.toml") }

// keep has a containerd run until the driver is closed.
func (d *daemon) keep(program string) {
	const least, most, steady = 100 * time.Millisecond, 10 * time.Second, time.Minute
	for delay := least; ; delay = min(2*delay, most) {
		since := time.Now()
		err := d.run(program)
		if time.Since(since) > steady {
			delay = least
		}
		select {
		case <-d.closing:
			return
		default:
			d.log.Error("containerd has ended; it is started again", "err", err, "in", delay,
				"log", filepath.Join(d.dir, "log"))
		}
		select {
		case <-d.closing:
			return
		case <-time.After(delay):
		}
	}
}

const longest = len(syscall.RawSockaddrUnix{}.Path) - 1 // path of a socket

const patience = 5 * time.Second // with a containerd that was told to end

// run runs a containerd until it ends, or the driver is closed. It ends with the thread that
// started it, so this goroutine keeps the thread until then.
func (d *daemon) run(program string) error {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	said, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.Command(program, "--config", d.file(), "--log-level", "warn")
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		select {
		case <-d.closing:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-over:
			case <-time.After(patience):
				_ = cmd.Process.Kill()
			}
		case <-over:
		}
	})
	err = cmd.Wait()
	close(over)
	told.Wait()
	if err == nil {
		err = errors.New("it was told to end")
	}
	if text, _ := os.ReadFile(said.Name()); len(text) > 0 {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		err = fmt.Errorf("%w: %.300s", err, lines[len(lines)-1])
	}
	return err
}

func (d *daemon) close() {
	close(d.closing)
	d.ended.Wait()
}
