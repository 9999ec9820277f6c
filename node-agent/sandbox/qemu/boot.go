package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Files of a sandbox's run directory. The VMM writes both logs, so they are charged to the
// sandbox's cgroup: a guest that floods its console fills only its own memory.
func controlSocket(spec sandbox.Spec) string { return filepath.Join(spec.Dir, "qmp.sock") }
func consoleLog(spec sandbox.Spec) string    { return filepath.Join(spec.Dir, "console.log") }
func vmmLog(spec sandbox.Spec) string        { return filepath.Join(spec.Dir, "vmm.log") }

// A boot is one start on its way.
type boot struct {
	*Driver
	vm       *vm
	vsock    *os.File // the device that has the guest's CID, until QEMU has it
	tl       *timeline.Timeline
	region   int64 // the size of the image region, if the guest has one
	mapped   int64 // the same, if VFs may reach it
	launched time.Time
	resumed  time.Time
}

// run takes the steps in order. If it fails, its caller ends the vm.
func (b *boot) run(ctx context.Context, owned func(sandbox.Record) error) (err error) {
	v := b.vm
	defer b.vsock.Close()
	b.tl.Show(timeline.VMM)
	if v.conn, err = b.guests.Expect(uint32(v.cell.User)); err == nil {
		err = b.launch()
	}
	v.watch()
	if err != nil {
		return err
	}
	rec := v.cell.Record(v.spec)
	rec.Secret = v.secret
	if err := owned(rec); err != nil {
		return err
	}
	seen := b.config.Probe.Watch(v.cell.PID())
	defer seen.Close()
	defer func() { b.account(seen.Events()) }()
	if err := b.release(); err != nil {
		return err
	}
	b.tl.Show(timeline.GuestBoot)
	hello, err := v.greet(ctx)
	if err != nil {
		return err
	}
	b.tl.Show(timeline.Agent)
	config := configuration(v.spec, v.secret)
	if config.Gate = config.NIC != nil && b.config.Arm.Async; config.Gate && !hello.Gate {
		config.Gate = false
		b.config.Log.Warn("the guest has no tun devices: its program waits for its VF",
			"sandbox", v.spec.ID)
	}
	if len(config.Mounts) > 0 && !hello.Files {
		return errors.New("the guest's process 1 is of a former version, which gives programs no" +
			" files: build the guest's image anew (`fastiov image`)")
	}
	roomy := func(m wire.Mount) bool { return m.Room > 0 }
	if slices.ContainsFunc(config.Mounts, roomy) && !hello.Rooms {
		return errors.New("the guest's process 1 is of a former version, which gives programs no" +
			" folders to write: build the guest's image anew (`fastiov image`)")
	}
	if err := v.conn.Configure(config); err != nil {
		return err
	}
	if err := v.conn.Ready(ctx); err != nil {
		return err
	}
	v.late.gated = config.Gate
	if v.spec.PCI() != nil && !config.Gate {
		b.weigh(timeline.BusMaster)
	}
	return nil
}

// opensWithin bounds how long a VF may come up beside the program. The guest gives up before; one
// that says nothing could never be paused.
const opensWithin = 2 * time.Minute

// follow waits for a VF that comes up beside the program, and completes the timeline.
func (b *boot) follow() {
	v := b.vm
	if !v.opens() {
		return
	}
	b.tl.Add(v.conn.Spans()[v.late.spans:]...)
	if v.spec.PCI() == nil {
		return
	}
	f := b.weigh(timeline.BusMaster)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.late.memory = f
}

// opens waits for the VF, or ends the vm if that takes too long.
func (v *vm) opens() bool {
	select {
	case <-v.conn.Opened():
		return true
	case <-v.conn.Done():
	case <-time.After(opensWithin):
		v.End(fmt.Errorf("%w within %v", wire.ErrNIC, opensWithin))
	}
	return false
}

// weigh notes how much memory the guest has now. No start is failed for want of a figure. The VF's
// driver made it bus master when it started; all memory that the VF reaches has been there since.
func (b *boot) weigh(at timeline.Moment) *timeline.Footprint {
	f, err := b.vm.ram.weigh(at)
	if err != nil {
		b.config.Log.Warn("guest memory cannot be weighed", "sandbox", b.vm.spec.ID, "err", err)
		return nil
	}
	if at == timeline.BusMaster {
		f.Waited = b.config.Probe.Waited(b.vm.spec.NIC.Device())
	}
	b.tl.Weigh(f)
	return &f
}

// launch starts QEMU, which then waits at its control socket.
func (b *boot) launch() error {
	spec := b.vm.spec
	h, err := b.hand(b.vm.Context(), spec)
	h.vsock = b.vsock
	b.vm.ram, b.region = h.ram, h.region.size
	if h.region.dma {
		b.mapped = b.region
	}
	if err == nil {
		err = b.plug(&h)
	}
	defer h.close()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(vmmLog(spec), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := describe(spec, b.vm.cell.User, b.parameters, h).cmd(b.config.QEMU.Program, log)
	b.vm.args = cmd.Args
	b.launched = time.Now()
	const beside = 64 // for the memory that VFIO maps beside the guest's: firmware, option ROMs
	return b.vm.cell.Start(cmd, spec.MemoryMiB+int(b.region>>20)+beside)
}

// plug gives a NIC other than a VF its tap.
func (b *boot) plug(h *handed) (err error) {
	nic := b.vm.spec.NIC
	if nic == nil || nic.PCI != nil {
		return nil
	}
	defer b.tl.Begin(timeline.CNI)()
	if h.tap, err = b.config.Tap(b.vm.Context(), nic); err != nil {
		return err
	}
	if h.vhost, err = os.OpenFile("/dev/vhost-net", os.O_RDWR, 0); err != nil {
		h.vhost = nil // QEMU can do without
	}
	return nil
}

// hand opens what one VMM inherits.
func (d *Driver) hand(ctx context.Context, spec sandbox.Spec) (h handed, err error) {
	h = handed{kernel: d.kernel, initrd: d.initrd}
	for _, o := range []struct {
		file  **os.File
		path  string
		flags int
	}{
		{&h.kvm, "/dev/kvm", os.O_RDWR},
		{&h.console, consoleLog(spec), os.O_WRONLY | os.O_CREATE | os.O_APPEND},
	} {
		if *o.file, err = os.OpenFile(o.path, o.flags, 0o600); err != nil {
			return h, err
		}
	}
	if d.config.Arm.HasRegion() {
		h.region, err = d.images.open(ctx, spec, d.config.Arm.Root == arm.Unmapped)
	} else {
		h.root, h.disk, err = openDisk(spec)
	}
	if err != nil {
		return h, err
	}
	if d.config.Arm.Zeroed > 0 {
		h.ram, err = d.ahead.take(spec.MemoryMiB)
	} else {
		h.ram, err = newMemory(spec.MemoryMiB, d.config.HugePages, d.config.Arm)
	}
	if err != nil {
		return h, err
	}
	if d.config.Arm.Memory == fastiovd.Table {
		if err = h.ram.keep(d.kernel, d.initrd); err != nil {
			return h, err
		}
	}
	h.control, err = listen(controlSocket(spec))
	return h, err
}

// close closes our side of the files that only this VMM uses, but for its memory. Kernel and initrd
// serve the next VMM too.
func (h handed) close() {
	for _, f := range append(h.root, h.kvm, h.console, h.control, h.disk.read, h.disk.write,
		h.region.file, h.tap, h.vhost) {
		if f != nil {
			f.Close()
		}
	}
}

// listen binds the socket that QEMU will serve, so that connecting to it needs no waiting for QEMU.
// Root alone may connect.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// release lets QEMU make the machine, then lets the guest run.
func (b *boot) release() error {
	if err := b.vm.connect(); err != nil {
		return err
	}
	b.weigh(timeline.FirstInstruction)
	if err := b.vm.qmp.ask("cont", nil); err != nil {
		return err
	}
	select {
	case b.resumed = <-b.vm.resumed:
		return nil
	case <-b.vm.Done():
		return errors.New("the guest did not begin to run")
	}
}

// account turns the events into the stages of the timeline. A start that failed has the stages that
// it reached.
func (b *boot) account(events []kprobe.Event) {
	if b.resumed.IsZero() {
		b.resumed = time.Now()
	}
	b.tl.Show("")
	b.tl.Add(timeline.Span{Stage: timeline.VMM, Begin: b.launched, End: b.resumed})
	b.tl.Add(kprobe.Spans(events, uint64(b.mapped))...)
	spans := b.vm.conn.Spans()
	b.vm.late.spans = len(spans)
	for _, s := range spans {
		// The guest counts from its counter's zero, which is a little before it ran.
		if s.Stage == timeline.GuestBoot {
			s.Begin = b.resumed
		}
		b.tl.Add(s)
	}
	if b.vm.late.gated {
		go b.follow()
	}
}

func configuration(spec sandbox.Spec, secret door.Secret) wire.Config {
	c := wire.Config{Secret: secret, Hostname: spec.ID, Program: spec.Program}
	if n := spec.NIC; n != nil {
		c.NIC = &wire.NIC{MAC: n.MAC, Address: n.Address, Gateway: n.Gateway, DNS: n.DNS}
	}
	return c
}

// connect opens the control connection and makes sure that it is this sandbox's VMM that answers.
func (v *vm) connect() (err error) {
	q, err := dialQMP(controlSocket(v.spec), v.onEvent)
	if err != nil {
		return err
	}
	if !v.take(q) {
		return errors.New("the VMM has ended")
	}
	if err := q.hello(); err != nil {
		return err
	}
	var who struct{ Name string }
	if err := q.ask("query-name", &who); err != nil {
		return err
	}
	if who.Name != v.spec.ID {
		return fmt.Errorf("the VMM says that it is sandbox %.40q", who.Name)
	}
	return nil
}
