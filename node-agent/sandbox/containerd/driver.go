package containerd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/fastiov/fastiov/node-agent/api/limits"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// OverheadMiB is the memory that a container needs beside its own: its shim's.
const OverheadMiB = 16

// Config says which containerd runs the sandboxes, and how.
type Config struct {
	Address   string // of containerd's socket; empty: the driver chooses
	Namespace string // of containerd's, this agent's own; also the parent of the cgroups
	// What runs containers: runc, crun, runsc, …, or the full name of a containerd runtime. The
	// first is the default.
	Handlers []string
	Dir      string // for what the driver keeps while it is open, on a tmpfs
	// Plug returns the network namespace of a sandbox with that NIC.
	Plug func(context.Context, *sandbox.NIC) (*os.File, error)
	// Linked returns when the NIC there has a link; nil: it has one at once.
	Linked func(ctx context.Context, namespace *os.File) error
	// Unplug takes a NIC out again that outlives its sandbox; nil: none does.
	Unplug func(*sandbox.NIC, *os.File) error
	Log    *slog.Logger
}

// A Driver starts containers.
type Driver struct {
	Config
	client   *client.Client
	daemon   *daemon            // nil: somebody else's
	runtimes map[string]runtime // by their handlers, the default's also by ""
	roots    *roots
	profile  string // of AppArmor, that containers have; empty: none
	closing  chan struct{}
	boxes    sync.WaitGroup
	turns    chan struct{} // those that make a second program in a sandbox

	endWithin, endAgain time.Duration // containerd, to end a container; and until it is asked again

	mu    sync.Mutex
	used  map[string]bool // ids of sandboxes that are there, or that have not ended
	later map[string]bool // those of them that containerd is asked again to end
}

const (
	readyWithin = time.Minute      // containerd, to answer for the first time
	makeWithin  = 30 * time.Second // containerd, to make a container or its process
	pauseWithin = 10 * time.Second
)

// Open connects to containerd.
func Open(ctx context.Context, cfg Config) (_ *Driver, err error) {
	d := &Driver{Config: cfg, closing: make(chan struct{}),
		used: map[string]bool{}, later: map[string]bool{},
		endWithin: 30 * time.Second, endAgain: 10 * time.Second,
		turns: make(chan struct{}, max(1, goruntime.NumCPU()/4))}
	if d.runtimes, err = runtimesOf(cfg.Handlers, d.shims().path); err != nil {
		return nil, err
	}
	for handler, r := range d.runtimes {
		if r.ownStack && cfg.Linked != nil { // it would call who has its address
			return nil, fmt.Errorf("the runtime handler %s has a network stack of its own, and "+
				"its programs cannot be reached over a VF; leave it out, or use the bridge",
				handler)
		}
	}
	if err := d.choose(ctx); err != nil {
		return nil, err
	}
	if err := d.note(); err != nil {
		return nil, err
	}
	if d.profile, err = d.loadProfile(); err != nil {
		return nil, err
	}
	if d.roots, err = openRoots(rootsDir(cfg.Dir)); err != nil {
		return nil, err
	}
	if d.Address == "" {
		if d.daemon, err = startDaemon(daemonDir(cfg.Dir), cfg.Log); err != nil {
			d.roots.close()
			return nil, err
		}
		d.Address = d.daemon.address
	}
	if err := d.connect(ctx); err != nil {
		d.Close()
		return nil, fmt.Errorf("containerd at %s: %w", d.Address, err)
	}
	if err := d.shims().make(); err != nil {
		d.Close()
		return nil, fmt.Errorf("the cgroup of the shims: %w", err)
	}
	return d, nil
}

func (d *Driver) connect(ctx context.Context) (err error) {
	if d.client, err = client.New(d.Address, client.WithDefaultNamespace(d.Namespace)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.named(ctx), readyWithin)
	defer cancel()
	for {
		v, err := d.client.Version(ctx)
		if err == nil {
			d.Log.Info("sandboxes are containers, which share this machine's kernel",
				"handlers", d.Handlers, "containerd", v.Version, "address", d.Address)
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// named returns ctx with the namespace of this driver's containers.
func (d *Driver) named(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, d.Namespace)
}

// making returns a context in which something of a container is made. A caller who leaves does not
// cut that short: nobody would know whether it is there.
func (d *Driver) making(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.named(context.WithoutCancel(ctx)), makeWithin)
}

// Offers implements sandbox.Chooser. A handler that is a path is also known by the program's name.
func (d *Driver) Offers(handler string) error {
	if _, has := d.runtimes[handler]; !has {
		return fmt.Errorf("this node has no runtime handler %.40q; it has %s: name one of these,"+
			" or add yours to --runtime-handler", handler, strings.Join(d.Handlers, ", "))
	}
	return nil
}

// Close lets go of running sandboxes and leaves them to a later agent. Call it once, with no start
// under way.
func (d *Driver) Close() {
	close(d.closing)
	d.boxes.Wait()
	over := len(d.cgroups()) == 0
	if d.client != nil {
		over = over && len(d.Leftovers(nil)) == 0
		_ = d.client.Close()
	}
	if d.daemon != nil {
		d.daemon.close()
	}
	d.roots.close()
	if over {
		d.shims().awaitEnd() // containerd does not wait for those that it has told to end
		d.shims().remove()
		group{path: filepath.Join("/", d.Namespace)}.remove()
		unloadProfile(d.Namespace)
		d.clearStates()
		_ = os.RemoveAll(d.Dir) // with its note: a later agent is free to choose
	}
}

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	if !d.use(spec.ID) {
		return nil, fmt.Errorf("sandbox %s is there already", spec.ID)
	}
	b, err := d.prepare(ctx, spec, tl)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	b.booting.Add(1)
	d.tend(b)
	if err := b.Begin(ctx, func() error {
		defer b.booting.Done()
		return b.boot(ctx, tl, owned)
	}); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	return b, nil
}

func (d *Driver) use(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used[id] {
		return false
	}
	d.used[id] = true
	return true
}

func (d *Driver) unuse(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.used, id)
}

// prepare makes all of a sandbox but its process. If it fails, nothing is left.
func (d *Driver) prepare(ctx context.Context, spec sandbox.Spec,
	tl *timeline.Timeline) (_ *box, err error) {
	ended := true
	defer func() {
		if err != nil && ended {
			d.unuse(spec.ID)
		}
	}()
	if err := d.Offers(spec.Handler); err != nil {
		return nil, err
	}
	if len(spec.Sidecars) > 0 {
		if err := d.TakesSidecars(spec.Handler); err != nil {
			return nil, err
		}
	}
	b := newBox(d, spec)
	if b.net, err = d.plug(ctx, spec.NIC, tl); err != nil {
		return nil, err
	}
	if err := b.furnish(ctx, tl); err != nil {
		_, ended = d.end(context.Background(), spec, 0)
		d.unplug(spec, b.net)
		b.letGo(false)
		return nil, err
	}
	return b, nil
}

// plug makes the sandbox's network namespace.
func (d *Driver) plug(ctx context.Context, nic *sandbox.NIC,
	tl *timeline.Timeline) (*os.File, error) {
	if nic == nil {
		return netns.New()
	}
	defer tl.Begin(timeline.CNI)()
	return d.Plug(ctx, nic)
}

// unplug takes the NIC out of a sandbox's network namespace before that goes. The kernel would do
// so, too, and later.
func (d *Driver) unplug(spec sandbox.Spec, namespace *os.File) {
	if namespace == nil || spec.NIC == nil || d.Unplug == nil {
		return
	}
	if err := d.Unplug(spec.NIC, namespace); err != nil {
		d.Log.Warn("a NIC was not taken out of its sandbox", "sandbox", spec.ID,
			"nic", spec.NIC.Device(), "err", err)
	}
}

// Adopt implements sandbox.Driver.
func (d *Driver) Adopt(ctx context.Context, rec sandbox.Record) (sandbox.Sandbox, error) {
	b := newBox(d, rec.Spec)
	if !d.use(rec.Spec.ID) {
		return nil, fmt.Errorf("sandbox %s is there already", rec.Spec.ID)
	}
	b.pid = rec.PID
	err := b.meet(d.named(ctx), rec)
	if err == nil {
		d.tend(b)
		b.watch()
		err = b.Begin(ctx, func() error { return b.Resume(ctx) })
		if err == nil {
			return b, nil
		}
	} else {
		b.letGo(false)
		d.unuse(rec.Spec.ID)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}
	return nil, fmt.Errorf("sandbox %s cannot be adopted: %w", rec.Spec.ID, err)
}

// meet finds the container of a record, and what the agent holds of it. It fails unless the
// container's process is that of the record.
func (b *box) meet(ctx context.Context, rec sandbox.Record) (err error) {
	if err := b.open(); err != nil { // the process's number cannot pass to another from now on
		return err
	}
	ticks, err := procfs.StartTicks(rec.PID)
	if err != nil {
		return err
	}
	if ticks != rec.StartTicks {
		return fmt.Errorf("process %d started at tick %d, the record says %d: another process has"+
			" that number now", rec.PID, ticks, rec.StartTicks)
	}
	if b.container, err = b.driver.client.LoadContainer(ctx, rec.Spec.ID); err != nil {
		return err
	}
	if b.task, err = b.container.Task(ctx, nil); err != nil {
		return err
	}
	if pid := b.task.Pid(); int(pid) != rec.PID {
		return fmt.Errorf("its container has process %d, the record says %d", pid, rec.PID)
	}
	if b.paused, err = b.isPaused(ctx); err != nil {
		return err
	}
	for _, s := range b.sidecars {
		s.net = b.net
		if err := s.find(ctx); err != nil {
			return fmt.Errorf("the sidecar %s: %w", s.name, err)
		}
	}
	return b.listen()
}

// End implements sandbox.Driver.
func (d *Driver) End(spec sandbox.Spec) { d.endFound(context.Background(), spec) }

// endFound ends a sandbox of which the spec may not say what it has of sidecars, as where its
// record is gone: then it looks for as many as one can have.
func (d *Driver) endFound(ctx context.Context, spec sandbox.Spec) {
	namespace := d.cgroup(spec).network()
	if len(spec.Sidecars) == 0 {
		spec.Sidecars = make([]sandbox.Sidecar, limits.Sidecars)
	}
	_, _ = d.end(ctx, spec, 0)
	if namespace != nil {
		d.unplug(spec, namespace)
		_ = namespace.Close()
	}
}

// end ends what there is of a sandbox, and returns how one of its programs ended: a sidecar by its
// number, or the one that serves, by 0. Its processes have gone then. Where containerd is away, it
// is asked again later to remove the containers, since nobody else would do that; until it has, the
// sandbox has not ended, and its id is in use.
func (d *Driver) end(ctx context.Context, spec sandbox.Spec, of int) (exit string, ended bool) {
	exit, err := d.tryToEnd(ctx, spec, of)
	if err != nil {
		d.endLater(spec)
		d.Log.Error("containerd has not ended a sandbox; it is asked again", "sandbox", spec.ID,
			"err", err)
	}
	return exit, err == nil
}

// endLater has a sandbox end as soon as containerd does it, unless that is under way. When the
// driver closes before, the containers are left over.
func (d *Driver) endLater(spec sandbox.Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used[spec.ID] = true
	if !d.later[spec.ID] {
		d.later[spec.ID] = true
		d.boxes.Go(func() { d.askAgain(spec) })
	}
}

func (d *Driver) askAgain(spec sandbox.Spec) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d.boxes.Go(func() {
		defer cancel()
		select {
		case <-d.closing:
		case <-ctx.Done():
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.endAgain):
		}
		if _, err := d.tryToEnd(ctx, spec, 0); err == nil {
			d.Log.Info("containerd has ended a sandbox that was left over", "sandbox", spec.ID)
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.later, spec.ID)
			delete(d.used, spec.ID)
			return
		}
	}
}

func (d *Driver) tryToEnd(ctx context.Context, spec sandbox.Spec, of int) (exit string, err error) {
	d.cgroup(spec).kill() // also where containerd does not answer
	ctx, cancel := context.WithTimeout(d.named(ctx), d.endWithin)
	defer cancel()
	starved := d.cgroup(spec).starved() // the runtime removes the cgroup
	exits, errs := make([]string, 1+len(spec.Sidecars)), make([]error, 1+len(spec.Sidecars))
	var ending sync.WaitGroup
	for n := 1; n < len(exits); n++ {
		ending.Go(func() { exits[n], errs[n] = d.clean(ctx, sidecarOf(spec, n)) })
	}
	exits[0], errs[0] = d.clean(ctx, spec)
	ending.Wait()
	d.unshare(spec.ID)
	d.cgroup(spec).remove()
	if exit = exits[of]; starved > 0 {
		exit += fmt.Sprintf("; %d of its processes killed for want of memory", starved)
	}
	return exit, errors.Join(errs...)
}

// clean removes the container of a program that was killed, and what it had, and returns how the
// program ended.
func (d *Driver) clean(ctx context.Context, spec sandbox.Spec) (exit string, err error) {
	exit, err = d.remove(ctx, spec.ID)
	if err == nil {
		if d.daemon != nil {
			d.daemon.await(ctx, d.Namespace, spec.ID)
		}
		// A runc that was killed while it made a container leaves that, and its own program,
		// mounted there.
		unmountAll(filepath.Join(d.states(), spec.ID))
		_ = os.Remove(d.shimSocket(spec.ID)) // without it, nobody reaches a shim that lives
	}
	unmount(d.writable(spec.ID))
	for _, stream := range streams {
		_ = os.Remove(fifo(spec, stream))
	}
	return exit, err
}

// states returns where runc, and what has its command line, keeps the state of containers.
func (d *Driver) states() string { return filepath.Join("/run/containerd/runc", d.Namespace) }

// clearStates removes what is left there of containers that have ended.
func (d *Driver) clearStates() {
	left, _ := os.ReadDir(d.states())
	for _, container := range left {
		unmountAll(filepath.Join(d.states(), container.Name()))
	}
	_ = os.Remove(d.states())
}

// shimSocket returns where the shim of a container listens. One that is killed leaves its socket.
func (d *Driver) shimSocket(id string) string {
	name := sha256.Sum256([]byte(filepath.Join(d.Address, d.Namespace, id)))
	return fmt.Sprintf("/run/containerd/s/%x", name)
}

// remove has containerd remove the container id, which need not be there.
func (d *Driver) remove(ctx context.Context, id string) (exit string, err error) {
	container, err := d.load(ctx, id)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	task, err := container.Task(ctx, nil)
	if err == nil {
		status, err := remove(ctx, task)
		if err != nil && !errdefs.IsNotFound(err) {
			return "", err
		}
		if status != nil {
			exit = fmt.Sprintf("exit status %d", status.ExitCode())
		}
	} else if !errdefs.IsNotFound(err) {
		return "", err
	}
	if err := container.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return exit, err
	}
	return exit, nil
}

// remove removes a task whose processes were killed. A runtime may fail to kill what has ended:
// it is asked to only where something lives.
func remove(ctx context.Context, task client.Task) (*client.ExitStatus, error) {
	if exited, err := task.Wait(ctx); err == nil {
		select {
		case <-exited:
		case <-time.After(lastWords):
		}
		if status, err := task.Delete(ctx); err == nil {
			return status, nil
		}
	}
	return task.Delete(ctx, client.WithProcessKill)
}

// load finds a container, and waits for a containerd that is just being started again.
func (d *Driver) load(ctx context.Context, id string) (client.Container, error) {
	for {
		container, err := d.client.LoadContainer(ctx, id)
		if err == nil || !errdefs.IsUnavailable(err) {
			return container, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Leftovers implements sandbox.Driver.
func (d *Driver) Leftovers(live map[string]bool) (left []string) {
	ctx, cancel := context.WithTimeout(d.named(context.Background()), pauseWithin)
	defer cancel()
	containers, err := d.client.Containers(ctx)
	if err != nil {
		left = append(left, fmt.Sprintf("what containerd at %s has: %v", d.Address, err))
	}
	for _, c := range containers {
		if !live[sandboxOf(c.ID())] {
			left = append(left, "container "+c.ID())
		}
	}
	for _, id := range d.cgroups() {
		if !live[id] {
			left = append(left, "cgroup "+id)
		}
	}
	return left
}

// tend starts the goroutine that brings a sandbox's end about, or lets go of it.
func (d *Driver) tend(b *box) {
	d.boxes.Go(func() {
		select {
		case <-d.closing:
			b.End(sandbox.ErrLetGo)
		case <-b.Context().Done():
		}
		exit, ended := "", true
		letGo := errors.Is(b.Cause(), sandbox.ErrLetGo)
		if !letGo {
			d.cgroup(b.spec).kill() // so that it boots no longer
		}
		b.booting.Wait() // its process may only be born now
		if !letGo {
			exit, ended = d.end(context.Background(), b.spec, endedFirst(b.Cause()))
		}
		b.HangUp()
		if !letGo {
			d.unplug(b.spec, b.net)
		}
		b.letGo(!letGo)
		if ended {
			d.unuse(b.spec.ID)
		}
		b.renewing.Lock() // no file is written any more: its folder goes now
		defer b.renewing.Unlock()
		b.Over(func(cause error) error {
			if exit != "" {
				cause = fmt.Errorf("%w (%s)", cause, exit)
			}
			if said := b.lastLines(cause); said != "" {
				cause = fmt.Errorf("%w; its last lines: %s", cause, said)
			}
			return cause
		})
	})
}
