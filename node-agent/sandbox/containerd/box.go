package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/lines"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

// A box is one container. It implements sandbox.Sandbox; one of a sidecar is part of a sandbox's.
type box struct {
	*life.Life
	driver    *Driver
	spec      sandbox.Spec
	name      string // of a sidecar; empty: its program serves
	sidecars  []*box
	container client.Container
	task      client.Task
	pid       int
	net       *os.File // its network namespace
	process   *os.File // its pidfd
	booting   sync.WaitGroup
	logs      *tail.Log
	output    sync.WaitGroup
	pipes     []io.Closer // our ends of its output

	freezing sync.Mutex // held while all programs are frozen, or thawed
	renewing sync.Mutex // held while files of the program are replaced
	mu       sync.Mutex
	paused   bool
}

var streams = []string{"stdout", "stderr"}

func fifo(spec sandbox.Spec, stream string) string { return filepath.Join(spec.Dir, stream) }

func newBox(d *Driver, spec sandbox.Spec) *box {
	b := &box{Life: life.New(), driver: d, spec: spec, logs: tail.New()}
	b.addSidecars()
	return b
}

// furnish makes the container, and what it needs.
func (b *box) furnish(ctx context.Context, tl *timeline.Timeline) error {
	endCgroup := tl.Begin(timeline.Cgroup)
	err := b.driver.cgroup(b.spec).make()
	endCgroup()
	if err != nil {
		return err
	}
	defer tl.Begin(timeline.Runtime)()
	for _, s := range b.sidecars {
		if err := s.furnishBeside(ctx, b.net); err != nil {
			return fmt.Errorf("the sidecar %s: %w", s.name, err)
		}
	}
	return b.contain(ctx)
}

// contain has containerd make the container.
func (b *box) contain(ctx context.Context) error {
	for _, stream := range streams {
		if err := unix.Mkfifo(fifo(b.spec, stream), 0o600); err != nil {
			return &os.PathError{Op: "mkfifo", Path: fifo(b.spec, stream), Err: err}
		}
	}
	if err := b.listen(); err != nil {
		return err
	}
	oci, err := b.oci(b.driver.named(ctx))
	if err != nil {
		return err
	}
	b.container, err = b.create(ctx, oci)
	if errdefs.IsUnavailable(err) { // it is just being started again
		b.container, err = b.driver.load(b.driver.named(ctx), b.spec.ID)
		if errdefs.IsNotFound(err) {
			b.container, err = b.create(ctx, oci)
		}
	}
	return err
}

func (b *box) create(ctx context.Context, oci *oci.Spec) (client.Container, error) {
	d := b.driver
	ctx, cancel := d.making(ctx)
	defer cancel()
	r := d.runtimes[b.spec.Handler]
	return d.client.NewContainer(ctx, b.spec.ID,
		client.WithRuntime(r.name, r.options), client.WithSpec(oci))
}

// boot starts the processes of the sandbox's programs.
func (b *box) boot(ctx context.Context, tl *timeline.Timeline,
	owned func(sandbox.Record) error) error {
	endRuntime := tl.Begin(timeline.Runtime)
	defer endRuntime()
	ctx = b.driver.named(ctx)
	if err := b.load(ctx); err != nil {
		return err
	}
	ticks, err := procfs.StartTicks(b.pid)
	if err != nil {
		return err
	}
	if err := owned(sandbox.Record{Spec: b.spec, PID: b.pid, StartTicks: ticks}); err != nil {
		return err
	}
	if len(b.sidecars) > 0 {
		err := b.startSidecars(ctx)
		b.driver.unshare(b.spec.ID) // the containers have it
		if err != nil {
			return err
		}
	}
	if err := b.task.Start(ctx); err != nil {
		return err
	}
	endRuntime()
	defer tl.Begin(timeline.Agent)()
	linked := b.linked()
	if err := b.accepts(ctx); err != nil {
		return err
	}
	if linked == nil {
		return nil
	}
	// Both are waited for at once. What the link takes beyond the program is its own stage.
	defer tl.Begin(timeline.VFDriver)()
	return <-linked
}

// load has the container's process be made, which waits to be started.
func (b *box) load(ctx context.Context) error {
	root, err := b.root()
	if err != nil {
		return err
	}
	making, cancel := b.driver.making(ctx)
	defer cancel()
	b.task, err = b.container.NewTask(making, b.io, client.WithRootFS([]mount.Mount{root}))
	unmount(b.driver.writable(b.spec.ID)) // the overlay has it, or there is none
	if err != nil {
		return err
	}
	b.pid = int(b.task.Pid())
	if err := b.open(); err != nil {
		return err
	}
	b.watch()
	return nil
}

// linked waits for the link of the NIC; nil: there is none to wait for.
func (b *box) linked() <-chan error {
	if b.spec.NIC == nil || b.driver.Linked == nil {
		return nil
	}
	linked := make(chan error, 1)
	go func() { linked <- b.driver.Linked(b.Context(), b.net) }()
	return linked
}

// io tells containerd where the container's output goes.
func (b *box) io(string) (cio.IO, error) {
	return cio.Load(cio.NewFIFOSet(cio.Config{
		Stdout: fifo(b.spec, streams[0]), Stderr: fifo(b.spec, streams[1]),
	}, nil))
}

// listen opens the sandbox's output. It holds a writing end, too: so a FIFO has no end of file
// between two writers, only once letGo has closed this one after the container's.
func (b *box) listen() error {
	for _, stream := range streams {
		reader, err := os.OpenFile(fifo(b.spec, stream), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		writer, err := os.OpenFile(fifo(b.spec, stream), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			_ = reader.Close()
			return err
		}
		b.pipes = append(b.pipes, writer, reader)
		b.output.Go(func() {
			defer reader.Close()
			lines.Split(reader, b.spec.Program.Mark, func(text string) {
				b.logs.Add(wire.LogLine{Time: time.Now(), Stream: stream, Text: text,
					Sidecar: b.name})
			})
		})
	}
	return nil
}

// open takes hold of the process and of its network.
func (b *box) open() error {
	fd, err := unix.PidfdOpen(b.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("process %d: %w", b.pid, err)
	}
	b.process = os.NewFile(uintptr(fd), "pidfd")
	if b.net == nil {
		b.net, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", b.pid))
	}
	return err
}

// watch ends the sandbox when its process has ended.
func (b *box) watch() {
	go func() {
		if conn, err := b.process.SyscallConn(); err == nil {
			err = conn.Read(func(fd uintptr) bool {
				polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(polled, 0)
				return n > 0 || err != nil && err != unix.EINTR
			})
			if err == nil { // else the box was let go of
				b.End(b.ended())
			}
		}
	}()
}

var errEnded = errors.New("its program has ended")

// lastWords bounds the wait for output that nobody ends, as where containerd does not answer.
const lastWords = time.Second

// letGo closes what the agent holds of the sandbox. Of one that has ended, it reads before what its
// programs have written, side by side: each may take its time.
func (b *box) letGo(ended bool) {
	var shutting sync.WaitGroup
	for _, s := range b.sidecars {
		shutting.Go(func() { s.shut(ended) })
	}
	b.shut(ended)
	shutting.Wait()
	b.logs.End()
	if b.net != nil {
		_ = b.net.Close()
	}
}

// shut closes what the agent holds of a program.
func (b *box) shut(ended bool) {
	var readers []io.Closer
	for i, pipe := range b.pipes {
		if i%2 == 0 {
			_ = pipe.Close() // the writer
		} else {
			readers = append(readers, pipe)
		}
	}
	cut := func() {
		for _, reader := range readers {
			_ = reader.Close()
		}
	}
	if ended {
		defer time.AfterFunc(lastWords, cut).Stop()
	} else {
		cut()
	}
	b.output.Wait()
	if b.process != nil {
		_ = b.process.Close()
	}
}

// accepts waits until the program accepts connections.
func (b *box) accepts(ctx context.Context) error {
	const again = 2 * time.Millisecond // nothing announces that a socket listens
	for {
		conn, err := b.Dial(ctx, b.spec.Program.Listens())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(again):
		case <-b.Context().Done():
			return b.Cause()
		}
	}
}

// Dial implements sandbox.Sandbox. A runtime with a network stack of its own, as gVisor, has no
// loopback device here: its programs are reached by the address of the NIC, which on a bridge is
// this host's neighbour.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if cause := b.Cause(); cause != nil {
		return nil, fmt.Errorf("the sandbox has ended: %w", cause)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.Context(), func() { cancel(b.Cause()) })()
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	conn, err := netns.Dial(ctx, b.net, netip.AddrPortFrom(here, uint16(port)))
	if errors.Is(err, syscall.ECONNREFUSED) && b.spec.NIC != nil &&
		b.driver.runtimes[b.spec.Handler].ownStack {
		at := netip.AddrPortFrom(b.spec.NIC.Address.Addr(), uint16(port))
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", at.String())
	}
	if err != nil {
		return nil, err
	}
	return b.Tie(conn), nil
}

// Pause implements sandbox.Sandbox.
func (b *box) Pause(ctx context.Context) error {
	b.HangUp()
	return b.freezeAll(ctx, true)
}

// Resume implements sandbox.Sandbox. The clocks are the host's.
func (b *box) Resume(ctx context.Context) error { return b.freezeAll(ctx, false) }

// freeze has containerd pause or resume the container, unless it is so.
func (b *box) freeze(ctx context.Context, pause bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cause := b.Cause(); cause != nil {
		return fmt.Errorf("the sandbox has ended: %w", cause)
	}
	if b.paused == pause {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.driver.named(context.WithoutCancel(ctx)), pauseWithin)
	defer cancel()
	var err error
	if pause {
		err = b.task.Pause(ctx)
	} else {
		err = b.task.Resume(ctx)
	}
	if err != nil { // it may have been done, and the answer lost with a containerd that was killed
		paused, unknown := b.isPaused(ctx)
		if unknown != nil {
			b.End(fmt.Errorf("whether it is paused cannot be told within %v: %w", pauseWithin,
				unknown))
			return err
		}
		if b.paused = paused; paused != pause {
			return err
		}
	}
	b.paused = pause
	return nil
}

var (
	errPausing    = errors.New("it is still being paused")
	errNotStarted = errors.New("a former agent has made it, and not started it")
)

// isPaused asks containerd, and waits for one that is just being started again, and for the end of
// a pause that one before it began.
func (b *box) isPaused(ctx context.Context) (bool, error) {
	for {
		status, err := b.task.Status(ctx)
		switch {
		case err == nil && status.Status == client.Pausing:
			err = errPausing
		case err == nil && status.Status == client.Created:
			return false, errNotStarted
		case err == nil || !errdefs.IsUnavailable(err):
			return status.Status == client.Paused, err
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Logs implements sandbox.Sandbox.
func (b *box) Logs() *tail.Log { return b.logs }
