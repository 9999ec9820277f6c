package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A sidecar is a container of its own: image, mounts, processes and output. It has the sandbox's
// network namespace and life. Where there are some, each program has a cgroup below the sandbox's,
// since one of version 2 has either processes or cgroups in it; their bounds are the sandbox's.

// TakesSidecars implements sandbox.Companion.
func (d *Driver) TakesSidecars(handler string) error {
	if d.runtimes[handler].ownStack {
		return fmt.Errorf("the containers of the runtime handler %.40q each have a network of "+
			"their own, so several would not find each other; use runc, or one container", handler)
	}
	return nil
}

// sidecarOf returns the sidecar of a number from 1 on as if it were a sandbox.
func sidecarOf(spec sandbox.Spec, n int) sandbox.Spec {
	s := spec.Sidecars[n-1]
	spec.MemoryMiB -= limits.SidecarMiB * len(spec.Sidecars)
	spec.ID += "." + strconv.Itoa(n) // no sandbox's has a dot
	spec.Dir = filepath.Join(spec.Dir, "sidecars", strconv.Itoa(n))
	spec.Root, spec.Layers, spec.Program, spec.Sidecars = s.Root, s.Layers, s.Program, nil
	return spec
}

// sandboxOf returns the sandbox of a container.
func sandboxOf(container string) string {
	id, _, _ := strings.Cut(container, ".")
	return id
}

// addSidecars adds the boxes of a sandbox's sidecars.
func (b *box) addSidecars() {
	for i, s := range b.spec.Sidecars {
		b.sidecars = append(b.sidecars, &box{Life: b.Life, driver: b.driver,
			spec: sidecarOf(b.spec, i+1), name: s.Name, logs: b.logs})
	}
}

// cgroup returns the path of the program's cgroup.
func (b *box) cgroup() string {
	path := b.driver.cgroup(b.spec).path
	_, number, sidecar := strings.Cut(b.spec.ID, ".")
	switch {
	case sidecar:
		return filepath.Join(path, number)
	case len(b.sidecars) > 0:
		return filepath.Join(path, "0")
	}
	return path
}

// furnishBeside makes a sidecar's container in the network of its sandbox.
func (b *box) furnishBeside(ctx context.Context, network *os.File) error {
	b.net = network
	if err := os.MkdirAll(b.spec.Dir, 0o755); err != nil {
		return err
	}
	return b.contain(ctx)
}

// shared returns where a folder of several programs is while their containers are made.
func (b *box) shared(m wire.Mount) (at string, err error) {
	at = b.driver.writable(sandboxOf(b.spec.ID) + "." + m.Shared + ".shared")
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return "", err
	}
	if err := os.Mkdir(at, 0o700); errors.Is(err, fs.ErrExist) {
		return at, nil
	} else if err != nil {
		return "", err
	}
	room := mount.Mount{Type: "tmpfs", Source: "fastiov",
		Options: append([]string{"nodev", "nosuid"}, strings.Split(m.Tmpfs(), ",")...)}
	if err := room.Mount(at); err != nil {
		return "", fmt.Errorf("tmpfs at %s: %w", at, err)
	}
	return at, nil
}

// unshare unmounts the shared folders of a sandbox, which its containers go on using.
func (d *Driver) unshare(id string) {
	all, _ := filepath.Glob(d.writable(id + ".*.shared"))
	for _, at := range all {
		unmount(at)
	}
}

// atOnce returns how many of one sandbox's programs are seen to side by side, whatever those of
// others are at.
func (d *Driver) atOnce() int { return max(2, cap(d.turns)) }

// startSidecars starts the sandbox's sidecars.
func (b *box) startSidecars(ctx context.Context) error {
	starting, failed := errgroup.WithContext(ctx)
	starting.SetLimit(b.driver.atOnce())
	for _, s := range b.sidecars {
		starting.Go(func() error {
			if failed.Err() != nil || b.Cause() != nil {
				return nil
			}
			err := s.load(ctx)
			if err == nil {
				err = s.task.Start(ctx)
			}
			if err != nil {
				return fmt.Errorf("the sidecar %s: %w", s.name, err)
			}
			return nil
		})
	}
	return starting.Wait()
}

// find finds a sidecar that a former agent started, and fails unless it lives.
func (b *box) find(ctx context.Context) (err error) {
	if b.container, err = b.driver.client.LoadContainer(ctx, b.spec.ID); err != nil {
		return err
	}
	if b.task, err = b.container.Task(ctx, nil); err != nil {
		return err
	}
	b.pid = int(b.task.Pid())
	if err := b.open(); err != nil {
		return err
	}
	status, err := b.task.Status(ctx) // its number was not another's before that
	switch {
	case err != nil && !errdefs.IsUnavailable(err):
		return err
	case status.Status == client.Stopped:
		return b.ended()
	}
	if b.paused, err = b.isPaused(ctx); err != nil {
		return err
	}
	if err := b.listen(); err != nil {
		return err
	}
	b.watch()
	return nil
}

// freezeAll pauses or resumes a sandbox's programs, as many side by side as are started so: a call
// waits for it. Where one of several cannot be, the sandbox ends at once: it is not left half.
func (b *box) freezeAll(ctx context.Context, pause bool) error {
	b.freezing.Lock()
	defer b.freezing.Unlock()
	if len(b.sidecars) == 0 {
		return b.freeze(ctx, pause)
	}
	var freezing errgroup.Group
	freezing.SetLimit(b.driver.atOnce())
	freezing.Go(func() error {
		err := b.freeze(ctx, pause)
		if err != nil {
			b.End(err)
		}
		return err
	})
	for _, s := range b.sidecars {
		freezing.Go(func() error {
			err := s.freeze(ctx, pause)
			if err != nil {
				err = fmt.Errorf("the sidecar %s: %w", s.name, err)
				b.End(err)
			}
			return err
		})
	}
	return freezing.Wait()
}

// A sidecarEnded is why a sandbox ends that has lost a sidecar.
type sidecarEnded struct {
	name   string
	number int
}

func (s *sidecarEnded) Error() string { return "its sidecar " + s.name + " has ended" }

// ended returns why the sandbox ends when this program has.
func (b *box) ended() error {
	_, number, sidecar := strings.Cut(b.spec.ID, ".")
	if !sidecar {
		return errEnded
	}
	n, _ := strconv.Atoi(number)
	return &sidecarEnded{b.name, n}
}

// endedFirst returns the number of the sidecar that a sandbox ends for, or 0.
func endedFirst(cause error) int {
	var first *sidecarEnded
	if errors.As(cause, &first) {
		return first.number
	}
	return 0
}

// What is said of a program's end has so much of its last lines at most.
const mostLines, mostSaid = 3, 400

// lastLines returns what a program wrote last by whose end its sandbox ends; empty: none does.
func (b *box) lastLines(cause error) (said string) {
	var first *sidecarEnded
	name := ""
	if errors.As(cause, &first) {
		name = first.name
	} else if !errors.Is(cause, errEnded) || b.spec.Program.Protocol != "http" {
		return "" // lines of a function are its calls'
	}
	lines := b.logs.Lines()
	for i, n := len(lines)-1, 0; i >= 0 && n < mostLines; i-- {
		if lines[i].Sidecar != name || strings.TrimSpace(lines[i].Text) == "" {
			continue
		}
		n++
		said = lines[i].Text + "\n" + said
	}
	said = strings.TrimSpace(said)
	if said == "" {
		return ""
	}
	return strconv.Quote(said[max(len(said)-mostSaid, 0):])
}
