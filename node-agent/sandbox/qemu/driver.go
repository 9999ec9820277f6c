// Package qemu runs functions in QEMU microVMs.
//
//	confine   cgroup, user, VFIO node                                     0-cgroup
//	launch    QEMU starts and waits at its control socket                 vmm ─┐
//	own       the record is written; nobody has touched the VF yet             │
//	release   we connect: QEMU maps RAM, opens the VF    1-dma-ram 4-vfio-dev  │ (kernel probe)
//	          cont: the first guest instruction                               ─┘
//	greet     the guest calls, is known by its CID, gets its configuration     guest-boot, agent
//	ready     VF up, runtime accepts                                           5-vf-driver
//
// A NIC other than a VF is a tap, which launch makes (cni): it has no 4-vfio-dev, and its driver in
// the guest counts as 5-vf-driver.
//
// The kernel probe sees the stages marked by the bracket.
//
// There is one way to end, whatever the cause (see package life): one goroutine kills the cgroup
// and takes down the rest. Every wait ends by that, so a cancelled start, a dead VMM and a guest
// that powers off are the same path.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// OverheadMiB is the memory that a VMM needs beside its guest's. The kernel holds it to the sum.
const OverheadMiB = 128

// MinMemoryMiB is the least a guest kernel boots with.
const MinMemoryMiB = 128

// Config holds the parts that microVMs are made of.
type Config struct {
	QEMU    hypervisor.QEMU
	Kernel  string
	Initrd  string
	Further string // what Initrd lacks for the arm; empty: nothing
	// Tap makes the tap device of a NIC other than a VF.
	Tap        func(context.Context, *sandbox.NIC) (*os.File, error)
	Rooms      int           // how many rooms for VMMs are kept ready
	BestEffort bool          // also where the host cannot enforce all limits
	HugePages  bool          // guest memory from the host's 2 MiB huge pages
	Arm        arm.Arm       // zero: memory is Eager; with HugePages not TouchMap
	Probe      *kprobe.Probe // nil: the stages inside the VMM stay unknown
	Log        *slog.Logger
}

// A Driver starts microVMs.
type Driver struct {
	config         Config
	kernel, initrd *os.File
	images         regions
	parameters     []string // of the guest kernel
	ahead          stock
	host           *jail.Host
	guests         *guest.Listener
}

// Open prepares the host: kernel and initrd are read once, the guests' vsock port is listened on.
func Open(config Config) (*Driver, error) {
	d := &Driver{config: config}
	if err := d.open(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Driver) open() (err error) {
	for _, device := range []string{"/dev/kvm", "/dev/vhost-vsock"} {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf(
				"microVMs need %s: %w (is its module loaded? fastiov doctor says more)",
				device, err)
		}
		f.Close()
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	d.parameters = parametersFor(string(cpuinfo))
	if d.config.Arm.TouchFirst() {
		// The guest zeroes, and so touches, all memory that it gives to a device.
		d.parameters = slices.Concat(d.parameters, []string{"init_on_alloc=1"})
	}
	if d.config.Arm.HasRegion() {
		d.parameters = slices.Concat(d.parameters, []string{"root=" + wire.Region})
	}
	if delay := os.Getenv(failpoint.DelayEnv); failpoint.Enabled && delay != "" {
		d.parameters = slices.Concat(d.parameters, []string{failpoint.DelayEnv + "=" + delay})
	}
	if d.kernel, err = hold("kernel", 1, d.config.Kernel); err != nil {
		return err
	}
	initrd := []string{d.config.Initrd}
	if d.config.Further != "" {
		initrd = append(initrd, d.config.Further)
	}
	if d.initrd, err = hold("initrd", 1, initrd...); err != nil {
		return err
	}
	q := d.config.QEMU
	d.config.Log.Info("microVMs run in " + q.String())
	if d.host, err = jail.Open(jail.Config{
		Name: "fastiov", Root: q.Root, Program: q.Program, Data: q.Firmware,
		Rooms: d.config.Rooms, BestEffort: d.config.BestEffort, Log: d.config.Log,
	}); err != nil {
		return err
	}
	d.guests, err = guest.Listen()
	return err
}

// Confinement describes to people how VMMs are held.
func (d *Driver) Confinement() string { return d.host.Confinement() }

// MadeOnPath counts the rooms that starts had to wait for.
func (d *Driver) MadeOnPath() int64 { return d.host.MadeOnPath() }

// ZeroAhead makes the memory of the next n guests that have that much, and zeroes as much of it as
// the arm says. The agent is charged for that part, and not their cgroups.
func (d *Driver) ZeroAhead(n, mib int) error {
	for range n {
		m, err := newMemory(mib, d.config.HugePages, d.config.Arm)
		if err != nil {
			return err
		}
		if err := m.zero(d.config.Arm.Zeroed); err != nil {
			m.close()
			return err
		}
		d.ahead.put(m)
	}
	return nil
}

// Close stops listening to guests. It does not end them: a later agent may adopt them.
func (d *Driver) Close() {
	if d.guests != nil {
		d.guests.Close()
	}
	if d.host != nil {
		d.host.Close()
	}
	d.ahead.close()
	for _, f := range []*os.File{d.kernel, d.initrd, d.images.last.file} {
		if f != nil {
			f.Close()
		}
	}
}

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline,
	owned func(sandbox.Record) error) (sandbox.Sandbox, error) {
	if spec.MemoryMiB < MinMemoryMiB {
		return nil, fmt.Errorf(
			"sandbox %s: %d MiB of memory is too little for a microVM, ask for %d or more", spec.ID,
			spec.MemoryMiB, MinMemoryMiB)
	}
	secret := door.NewSecret()
	if err := guest.Fits(configuration(spec, secret)); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	endCgroup := tl.Begin(timeline.Cgroup)
	cell, vsock, err := d.confine(spec)
	endCgroup()
	if err != nil {
		return nil, err
	}
	b := &boot{Driver: d, vm: newVM(spec, cell, secret), vsock: vsock, tl: tl}
	if err := b.vm.Begin(ctx, func() error { return b.run(ctx, owned) }); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.ID, err)
	}
	return b.vm, nil
}

// Adopt implements sandbox.Driver. A guest that had not become ready when its agent died is not
// adopted: no caller waits for it any more.
func (d *Driver) Adopt(ctx context.Context, rec sandbox.Record) (sandbox.Sandbox, error) {
	cell, err := d.host.Adopt(rec)
	if err != nil {
		return nil, err
	}
	v := newVM(rec.Spec, cell, rec.Secret)
	if err := v.Begin(ctx, func() error { return d.rejoin(ctx, v) }); err != nil {
		return nil, fmt.Errorf("sandbox %s cannot be adopted: %w", rec.Spec.ID, err)
	}
	return v, nil
}

func (d *Driver) rejoin(ctx context.Context, v *vm) (err error) {
	if v.conn, err = d.guests.Expect(uint32(v.cell.User)); err != nil {
		v.watch()
		return err
	}
	v.watch()
	if err := v.connect(); err != nil {
		return err
	}
	return v.goOn(ctx)
}

// goOn makes the guest of a former agent run and tell the right time. A running guest is told the
// time too: the former agent may have died after it let the guest run, before it told it the time.
func (v *vm) goOn(ctx context.Context) error {
	state, err := v.state()
	if err == nil && state == "paused" { // a paused guest does not call
		err = v.qmp.ask("cont", nil)
	}
	if err != nil {
		return err
	}
	hello, err := v.greet(ctx)
	if err != nil {
		return err
	}
	if !hello.Ready {
		return errors.New("its guest was not ready yet")
	}
	if v.late.gated = hello.Shut; hello.Shut {
		go v.opens()
	}
	return v.conn.Wake(ctx)
}

// End implements sandbox.Driver.
func (d *Driver) End(spec sandbox.Spec) {
	d.host.End(spec)
	_ = os.Remove(controlSocket(spec))
}

// Leftovers implements sandbox.Driver.
func (d *Driver) Leftovers(live map[string]bool) []string { return d.host.Leftovers(live) }
