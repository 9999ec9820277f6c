package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
)

// ErrDown means that the testbed is not up.
var ErrDown = errors.New("the testbed is not up: start it with `fastiov testbed up`")

// Up boots the testbed that c describes, and builds what it boots from if necessary. If the testbed
// is up already, Up returns it, or an error if it has less than c asks for. Progress goes to w.
func Up(ctx context.Context, c Config, w io.Writer) (*Host, error) {
	return up(ctx, c, w, false)
}

// up is Up. An owned host ends with this process.
func up(ctx context.Context, c Config, w io.Writer, owned bool) (*Host, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	path, err := StateDir(c.Name)
	if err != nil {
		return nil, err
	}
	d := dir(path)
	release, err := d.hold(ctx)
	if err != nil {
		return nil, diskFull(path, err)
	}
	defer release()
	if h, err := d.reuse(ctx, c); h != nil || err != nil {
		return h, err
	}
	cache, err := build.Open("", w)
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	l := launch{dir: d, cfg: c, owned: owned, steps: newSteps(w, "testbed")}
	if l.qemu, err = hypervisor.Find(ctx, cache.QEMU); err != nil {
		return nil, err
	}
	if l.img, err = boots(ctx, cache, c.Kernel); err != nil {
		return nil, err
	}
	if c.Accel == "" {
		l.cfg.Accel = "tcg"
		if nests(ctx, l.img.Kernel, l.qemu) {
			l.cfg.Accel = "kvm"
		}
	}
	mended := l.cfg.Accel == "tcg" && l.takeEmulator(ctx, cache)
	if c.CPUs == 0 {
		l.cfg.CPUs = 1
		if mended {
			l.cfg.CPUs = min(2, runtime.NumCPU())
		}
	}
	return l.boot(ctx)
}

// takeEmulator takes fastiov's QEMU where it has been built. Debian's loses microVMs now and then,
// and with several CPUs hosts, too.
func (l *launch) takeEmulator(ctx context.Context, cache *build.Builder) (taken bool) {
	dir, has := cache.HasEmulator(ctx)
	if !has {
		return false
	}
	q, err := hypervisor.In(ctx, dir)
	if err != nil { // its libraries have gone
		cache.Say(hypervisor.Emulator, "%v; going on with %v", err, l.qemu)
		return false
	}
	l.qemu = q
	return true
}

// boots returns what a host with that kernel boots from.
func boots(ctx context.Context, cache *build.Builder, kernel string) (image.Boot, error) {
	if kernel == DebianKernel {
		return cache.Testbed(ctx)
	}
	patched, err := cache.Patched(ctx, variant(kernel))
	return patched.Boot, err
}

// made returns what a host with that kernel is made from.
func made(kernel string) string {
	if kernel == DebianKernel {
		return build.TestbedKey()
	}
	return build.PatchedKey(variant(kernel))
}

// variant returns which of fastiov's kernels that is.
func variant(kernel string) build.Variant {
	switch kernel {
	case DebugKernel:
		return build.Debug
	case KCSANKernel:
		return build.KCSAN
	}
	return build.Plain
}

// reuse returns the host that is up in d, or nil. If a host never became ready, reuse ends it.
func (d dir) reuse(ctx context.Context, want Config) (*Host, error) {
	r, err := d.load()
	if r == nil || err != nil {
		return nil, err
	}
	h := &Host{dir: d, rec: *r}
	if len(r.HostKey) == 0 {
		d.end(ctx, h, newSteps(nil, ""))
		return nil, nil
	}
	if r.Made != made(r.Config.Kernel) {
		return nil, fmt.Errorf("testbed %q was started by another version of fastiov, "+
			"which makes its host otherwise: run `%s` first, or use another --name",
			want.Name, want.down())
	}
	if !r.Config.serves(want) {
		return nil, fmt.Errorf(
			"testbed %q is up with less than asked for (it has %s): "+
				"run `%s` first, or use another --name", want.Name, r.Config, want.down())
	}
	if err := h.dial(ctx); err != nil {
		return nil, fmt.Errorf(
			"testbed %q is up but does not answer (%w): run `%s`", want.Name, err, want.down())
	}
	return h, nil
}

// Open connects to the testbed called name, or returns ErrDown.
func Open(ctx context.Context, name string) (*Host, error) {
	h, err := find(name)
	if err != nil {
		return nil, err
	}
	if len(h.rec.HostKey) == 0 {
		return nil, fmt.Errorf("testbed %q is still booting", name)
	}
	if err := h.dial(ctx); err != nil {
		return nil, fmt.Errorf("testbed %q is up but does not answer: %w", name, err)
	}
	return h, nil
}

func find(name string) (*Host, error) {
	path, err := StateDir(name)
	if err != nil {
		return nil, err
	}
	d := dir(path)
	r, err := d.load()
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, ErrDown
	}
	return &Host{dir: d, rec: *r}, nil
}

// A Status holds what this machine knows of a testbed without asking its host.
type Status struct {
	State   string // ready or booting
	PID     int
	QEMU    string // its version
	SSHPort int
	Dir     string
	Config  Config
	Booted  time.Duration // how long the boot took
}

// Look returns the status of the testbed called name, or ErrDown.
func Look(name string) (Status, error) {
	h, err := find(name)
	if err != nil {
		return Status{}, err
	}
	s := Status{State: "ready", PID: h.rec.PID, QEMU: h.rec.QEMU, SSHPort: h.rec.SSHPort,
		Dir: string(h.dir), Config: h.rec.Config,
		Booted: time.Duration(h.rec.Booted * float64(time.Second))}
	if len(h.rec.HostKey) == 0 {
		s.State = "booting"
	}
	return s, nil
}

// Down ends the testbed called name and removes what it left, or returns ErrDown.
func Down(ctx context.Context, name string, w io.Writer) error {
	path, err := StateDir(name)
	if err != nil {
		return err
	}
	d := dir(path)
	if _, err := os.Stat(path); err != nil {
		return ErrDown
	}
	release, err := d.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	h, err := find(name)
	if err != nil {
		return err
	}
	d.end(ctx, h, newSteps(w, "testbed"))
	return nil
}

// End ends the host if this process booted it, and only the connection if it found it up.
func (h *Host) End(ctx context.Context, w io.Writer) error {
	defer h.Close()
	if h.ended == nil || !h.alive() { // once it has ended, its directory may be another one's
		return nil
	}
	// Callers that were interrupted come with a context that never ends.
	patient, cancel := context.WithTimeoutCause(ctx, holdTime,
		fmt.Errorf("still after %v", holdTime))
	release, err := h.hold(patient)
	cancel()
	if err != nil {
		return fmt.Errorf("the testbed stays up: %w; end it by `%s`", err, h.rec.Config.down())
	}
	defer release()
	if h.alive() { // still, with the directory held
		h.dir.end(ctx, h, newSteps(w, "testbed"))
	}
	return nil
}

// The most time that each way to end a host may take, and that another command is waited for.
const (
	holdTime     = time.Minute
	poweroffTime = 10 * time.Second
	quitTime     = 5 * time.Second
)

// end ends the host: first by poweroff, then by QEMU's quit, then by a kill. It cannot fail.
func (d dir) end(ctx context.Context, h *Host, s *steps) {
	defer s.done()
	defer os.RemoveAll(string(d))
	defer h.Close()
	p, err := openProcess(h.rec.PID, h.rec.StartTicks)
	if err != nil {
		return
	}
	defer p.close()
	s.step("powering off")
	if len(h.rec.HostKey) > 0 && h.poweroff(ctx) && p.gone(poweroffTime) {
		s.step("off")
		return
	}
	s.step("the host did not power off, ending QEMU")
	if quit(d.qmpSocket()) == nil && p.gone(quitTime) {
		return
	}
	s.step("QEMU did not quit, killing it")
	p.kill()
	p.gone(quitTime)
}

// poweroff asks the host to switch itself off. Its root is in memory, so nothing has to be saved.
func (h *Host) poweroff(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, poweroffTime)
	defer cancel()
	if h.dial(ctx) != nil {
		return false
	}
	defer context.AfterFunc(ctx, h.Close)() // a host that hangs takes no command
	return h.fire("sync; echo o >/proc/sysrq-trigger") == nil
}

// quit tells QEMU to end itself.
func quit(socket string) error {
	con, err := net.DialTimeout("unix", socket, quitTime)
	if err != nil {
		return err
	}
	defer con.Close()
	_ = con.SetDeadline(time.Now().Add(quitTime))
	in := json.NewDecoder(con)
	var greeting, answer any
	if err := in.Decode(&greeting); err != nil {
		return err
	}
	for _, command := range []string{"qmp_capabilities", "quit"} {
		if err := json.NewEncoder(con).Encode(map[string]string{"execute": command}); err != nil {
			return err
		}
		if err := in.Decode(&answer); err != nil {
			return err
		}
	}
	return nil
}
