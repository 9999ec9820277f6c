package command

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/sandbox/containerd"
	"github.com/fastiov/fastiov/node-agent/sandbox/qemu"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// A driver is one way to run sandboxes, as --sandbox names it. A new one is a package below
// node-agent/sandbox and a row of this table: no other file compares a driver's name.
type driver struct {
	name, note string
	root       bool    // it needs root; `up` then gives the invoker a process and a user of its own
	memory     bool    // its sandboxes take memory of this machine
	kernel     bool    // fastiov's kernel can serve it, as --fastiov says
	images     bool    // its sandboxes have the root image of a runtime
	guest      bool    // they boot a guest kernel, too; `up` has a testbed where they cannot
	netdevs    bool    // they can have VFs as network interfaces
	network    netpath // how its sandboxes reach a network
	// overhead returns the MiB that a sandbox takes beside its own memory.
	overhead func(hugePages bool) int
	// programmed returns the times that its stages are told to take; nil: they take their own.
	programmed func(start time.Duration) []sim.Step
	open       func(context.Context, *node, *nodeFlags, *image.Set) (sandbox.Driver, error)
	// clear ends the sandboxes that a killed agent left in its run directory, and takes back what
	// it had made for them; nil: their cgroups are enough. Where nothing is left, it does nothing.
	clear func(ctx context.Context, runDir string, log *slog.Logger) error
}

// The first one is the default.
var drivers = []driver{
	{
		name: "qemu", root: true, memory: true, kernel: true, images: true, guest: true,
		network: passedThrough, overhead: overheadOfQEMU, open: openQEMU,
	},
	{
		name: "bare", note: "VFIO without a guest", root: true, memory: true, kernel: true,
		network: passedThrough, overhead: func(bool) int { return bare.OverheadMiB },
		open: openBare,
	},
	{
		name: "sim", note: "simulated stage times",
		network: unconnected, overhead: func(bool) int { return 0 }, programmed: sim.Table1,
		open: openSim,
	},
	{
		name: "containerd", note: "containers, which share this machine's kernel",
		root: true, memory: true, images: true, netdevs: true,
		network: bridged, overhead: func(bool) int { return containerd.OverheadMiB },
		open: openContainerd, clear: clearContainerd,
	},
}

// driverNamed returns the row of that name.
func driverNamed(name string) (*driver, error) {
	for i := range drivers {
		if drivers[i].name == name {
			return &drivers[i], nil
		}
	}
	return nil, fmt.Errorf("no sandbox driver %q; there are %s", name, listed(driverNames(), "and"))
}

func driverNames() (names []string) {
	for _, d := range drivers {
		names = append(names, d.name)
	}
	return names
}

// driversExplained returns the names for a person to choose from.
func driversExplained() string {
	words := driverNames()
	for i, d := range drivers {
		if d.note != "" {
			words[i] += " (" + d.note + ")"
		}
	}
	return listed(words, "or")
}

// clearDrivers ends what agents left in their run directory, but for sandboxes of the driver kept.
func clearDrivers(ctx context.Context, runDir string, kept *driver, log *slog.Logger) error {
	for i := range drivers {
		if d := &drivers[i]; d != kept && d.clear != nil {
			if err := d.clear(ctx, runDir, log); err != nil {
				return fmt.Errorf("what %s left: %w", d.name, err)
			}
		}
	}
	return nil
}

// A driverFlag is the value of --sandbox.
type driverFlag struct{ to **driver }

func (v driverFlag) Type() string { return "string" }

func (v driverFlag) String() string {
	if v.to == nil || *v.to == nil { // pflag asks a zero value, too
		return ""
	}
	return (*v.to).name
}

func (v driverFlag) Set(name string) (err error) {
	d, err := driverNamed(name)
	if err == nil {
		*v.to = d
	}
	return err
}

// overheadOfQEMU leaves out the VMM's own memory where guests have huge pages: admission hands out
// nothing but huge pages then.
func overheadOfQEMU(hugePages bool) int {
	if hugePages {
		return 0
	}
	return qemu.OverheadMiB
}

func openQEMU(
	ctx context.Context, n *node, f *nodeFlags, images *image.Set,
) (sandbox.Driver, error) {
	rooms, err := f.rooms()
	if err != nil {
		return nil, err
	}
	vmm, err := qemuFor(ctx, n.arm, f.runDir, images)
	if err != nil {
		return nil, err
	}
	further, err := furtherFor(n.arm, images.Guest)
	if err != nil {
		return nil, err
	}
	probe, err := kprobe.Open()
	if err != nil {
		n.log.Warn("the stages inside the VMM (1-dma-ram, 4-vfio-dev) will be missing", "err", err)
	} else {
		n.probe = probe
		n.onClose(probe.Close)
	}
	cfg := qemu.Config{
		QEMU: vmm, Kernel: images.Guest.Kernel, Initrd: images.Guest.Initrd, Further: further,
		Rooms: rooms, BestEffort: f.bestEffort(), HugePages: f.hugePages, Arm: n.arm,
		Probe: probe, Log: n.log,
	}
	if n.arm.Tap {
		if err := n.openBridge(f); err != nil {
			return nil, err
		}
		cfg.Tap = n.bridge.Tap
	}
	d, err := qemu.Open(cfg)
	if err != nil {
		return nil, err
	}
	n.onClose(d.Close)
	n.microVMs = d
	return d, nil
}

// furtherFor returns what the guest's initrd lacks for the arm, or "".
func furtherFor(a arm.Arm, guest image.Boot) (string, error) {
	name, what := "", ""
	switch {
	case a.HasRegion():
		name, what = image.RegionName, "a root in memory"
	case a.Tap:
		name, what = image.TapName, "a tap"
	default:
		return "", nil
	}
	file, err := guest.Further(name)
	if err != nil {
		return "", fmt.Errorf("--fastiov %s: the guest has no drivers for %s (%w): use Debian's"+
			" guest kernel, or another arm", a, what, err)
	}
	return file, nil
}

// qemuFor returns the QEMU that the arm needs. The patched one is copied to the run directory: VMMs
// have users of their own, and these may not read all places that sets lie in, as the testbed's.
func qemuFor(
	ctx context.Context, a arm.Arm, runDir string, images *image.Set,
) (hypervisor.QEMU, error) {
	if a.Root != arm.Unmapped {
		return hypervisor.Find(ctx, images.QEMU)
	}
	from, err := images.PatchedQEMU(ctx)
	if err != nil {
		return hypervisor.QEMU{}, err
	}
	to := filepath.Join(runDir, hypervisor.Patched)
	if err := os.RemoveAll(to); err != nil { // VMMs that a former agent left keep theirs
		return hypervisor.QEMU{}, err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return hypervisor.QEMU{}, err
	}
	if err := readable(to); err != nil {
		return hypervisor.QEMU{}, err
	}
	return hypervisor.In(ctx, to)
}

// readable lets everybody read what is in dir, and nobody else write it, whatever the umask.
func readable(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}

func openBare(
	_ context.Context, n *node, f *nodeFlags, _ *image.Set,
) (sandbox.Driver, error) {
	rooms, err := f.rooms()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d, err := bare.Open(bare.Config{
		Command: []string{self, bareVMM}, Rooms: rooms, BestEffort: f.bestEffort(), Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	n.onClose(d.Close)
	return d, nil
}

func openContainerd(
	ctx context.Context, n *node, f *nodeFlags, _ *image.Set,
) (sandbox.Driver, error) {
	cfg := containerd.Config{
		Address: f.containerd, Handlers: f.handlers, Namespace: nodeName(f.runDir),
		Dir: containersDir(f.runDir), Log: n.log,
	}
	switch {
	case n.arm.NoNet:
	case n.arm.Netdev:
		cfg.Plug, cfg.Linked, cfg.Unplug = netvf.Plug, netvf.Linked, netvf.Unplug
	default:
		if err := n.openBridge(f); err != nil {
			return nil, err
		}
		cfg.Plug = n.bridge.Plug
	}
	d, err := containerd.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n.onClose(d.Close)
	return d, nil
}

func clearContainerd(ctx context.Context, runDir string, log *slog.Logger) error {
	return containerd.Clear(ctx, containersDir(runDir), log)
}

func openSim(
	_ context.Context, _ *node, f *nodeFlags, _ *image.Set,
) (sandbox.Driver, error) {
	stages := f.simStages
	if stages == nil {
		stages = sim.Table1(f.simStart)
	}
	return sim.New(sim.Config{Stages: stages}), nil
}
