// Package bare makes a sandbox without a guest. In the place of the VMM, a small program of our own
// owns the VF through VFIO, maps memory for its DMA and holds both. Lease, cgroup, user, record and
// adoption are the real ones, at a hundredth of a microVM's cost. So this is the driver for volume
// and for chaos.
package bare

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/sandbox/life"
)

// OverheadMiB is the memory that the program needs beside the memory it maps.
const OverheadMiB = 64

// Config holds the program's command and its surroundings.
type Config struct {
	// A command that runs Main with the arguments that follow it. Its first word is a path.
	Command    []string
	Rooms      int  // how many rooms for its processes are kept ready
	BestEffort bool // also where the host cannot enforce all limits
	Log        *slog.Logger
}

// A Driver starts bare sandboxes.
type Driver struct {
	command []string
	host    *jail.Host
	closing chan struct{}
	holders sync.WaitGroup
}

// Open prepares the host.
func Open(config Config) (*Driver, error) {
	host, err := jail.Open(jail.Config{
		Name: "fastiov", Program: config.Command[0], Rooms: config.Rooms,
		BestEffort: config.BestEffort, Log: config.Log,
	})
	if err != nil {
		return nil, err
	}
	return &Driver{command: config.Command, host: host, closing: make(chan struct{})}, nil
}

// Close lets go of running sandboxes and leaves them to a later agent. Call it once, with no start
// under way.
func (d *Driver) Close() {
	close(d.closing)
	// Otherwise a holder might see its process end later, and end the next sandbox of its name.
	d.holders.Wait()
	d.host.Close()
}

// Confinement describes to people how the processes are held.
func (d *Driver) Confinement() string { return d.host.Confinement() }

// MadeOnPath counts the rooms that starts had to wait for.
func (d *Driver) MadeOnPath() int64 { return d.host.MadeOnPath() }

func controlSocket(spec sandbox.Spec) string { return filepath.Join(spec.Dir, "bare.sock") }

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	endCgroup := tl.Begin(timeline.Cgroup)
	cell, err := d.host.Build(spec, spec.MemoryMiB+OverheadMiB)
	endCgroup()
	if err != nil {
		return nil, err
	}
	h := newHolder(spec, cell)
	if err := h.Begin(ctx, func() error { return d.boot(ctx, h, tl, owned) }); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	return h, nil
}

func (d *Driver) boot(ctx context.Context, h *holder, tl *timeline.Timeline,
	owned func(sandbox.Record) error) error {
	endVMM := tl.Begin(timeline.VMM)
	defer endVMM()
	err := d.launch(h)
	d.watch(h)
	if err != nil {
		return err
	}
	if err := owned(h.cell.Record(h.spec)); err != nil {
		return err
	}
	answer, err := h.ask(ctx, "/boot")
	if err != nil {
		return err
	}
	var spans []timeline.Span
	if err := json.Unmarshal(answer, &spans); err != nil {
		return fmt.Errorf("stages of the start: %w", err)
	}
	tl.Add(spans...)
	return nil
}

func (d *Driver) launch(h *holder) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: controlSocket(h.spec), Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	control, err := l.File()
	if err != nil {
		return err
	}
	defer control.Close()
	said, err := os.OpenFile(filepath.Join(h.spec.Dir, "vmm.log"),
		os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	args := append(append([]string{}, d.command...), h.spec.ID, strconv.Itoa(h.spec.MemoryMiB))
	if pci := h.spec.PCI(); pci != nil {
		args = append(args, jail.Group(pci.Group), pci.BDF)
	}
	cmd := &exec.Cmd{Args: args, Stdout: said, Stderr: said, ExtraFiles: []*os.File{control}}
	return h.cell.Start(cmd, h.spec.MemoryMiB+1)
}

// Adopt implements sandbox.Driver.
func (d *Driver) Adopt(ctx context.Context, rec sandbox.Record) (sandbox.Sandbox, error) {
	cell, err := d.host.Adopt(rec)
	if err != nil {
		return nil, err
	}
	h := newHolder(rec.Spec, cell)
	d.watch(h)
	if err := h.Begin(ctx, func() error {
		return errors.Join(cell.Thaw(), h.identify(ctx))
	}); err != nil {
		return nil, fmt.Errorf("sandbox %s cannot be adopted: %w", rec.Spec.ID, err)
	}
	return h, nil
}

// End implements sandbox.Driver.
func (d *Driver) End(spec sandbox.Spec) {
	d.host.End(spec)
	_ = os.Remove(controlSocket(spec))
}

// Leftovers implements sandbox.Driver.
func (d *Driver) Leftovers(live map[string]bool) []string { return d.host.Leftovers(live) }

// A holder is one process that holds a VF. It implements sandbox.Sandbox.
type holder struct {
	*life.Life
	spec sandbox.Spec
	cell *jail.Cell
	logs *tail.Log // without lines: there is no function that could write any
}

func newHolder(spec sandbox.Spec, cell *jail.Cell) *holder {
	h := &holder{Life: life.New(), spec: spec, cell: cell, logs: tail.New()}
	h.logs.End()
	return h
}

// watch starts the goroutine that notices the end, or brings it about, and takes everything down.
func (d *Driver) watch(h *holder) {
	d.holders.Go(func() {
		select {
		case <-d.closing:
			h.End(sandbox.ErrLetGo)
		case <-h.Context().Done():
		case <-h.cell.Done():
			h.End(fmt.Errorf("its process ended by itself: %s", h.cell.How()))
		}
		if h.Cause() == sandbox.ErrLetGo {
			h.cell.LetGo()
		} else {
			h.takeDown()
		}
		h.HangUp()
		h.Over(func(cause error) error { return cause })
	})
}

func (h *holder) takeDown() {
	h.cell.Close()
	_ = os.Remove(controlSocket(h.spec))
}

// Pause implements sandbox.Sandbox: it freezes the process, with all it holds. There is no guest
// whose clock could be wrong.
func (h *holder) Pause(context.Context) error {
	h.HangUp()
	return h.cell.Freeze()
}

// Resume implements sandbox.Sandbox.
func (h *holder) Resume(context.Context) error { return h.cell.Thaw() }

// identify asks the process who it is.
func (h *holder) identify(ctx context.Context) error {
	id, err := h.ask(ctx, "/id")
	if err == nil && string(id) != h.spec.ID {
		err = fmt.Errorf("its process says that it is %.40q", id)
	}
	return err
}

// ask sends the process a request of its driver's.
func (h *holder) ask(ctx context.Context, path string) ([]byte, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx) }
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://process"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(string(answer))
	}
	return answer, err
}

func (h *holder) dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", controlSocket(h.spec))
	if err != nil {
		return nil, err
	}
	return h.Tie(conn), nil
}

// Dial implements sandbox.Sandbox: the process answers as the runtime, which is the only one that
// listens.
func (h *holder) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port != wire.RuntimePort {
		return nil, fmt.Errorf("nothing listens on port %d of a sandbox without a guest", port)
	}
	return h.dial(ctx)
}

// Logs implements sandbox.Sandbox.
func (h *holder) Logs() *tail.Log { return h.logs }
