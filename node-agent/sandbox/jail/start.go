package jail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/procfs"
)

// An order holds the launcher's arguments and the flags of its clone.
type order struct {
	user   int
	limits []limit
	room   room
	filter *os.File
	flags  uintptr
}

// A limit is a resource limit of the process. Nothing in the room can raise it.
type limit struct {
	resource int
	value    uint64
}

// limits returns the limits that apply in addition to the cgroup's. A core size of 1 byte allows no
// core: 0 would still send it to a program that takes cores. A VMM's logs are on the file system of
// leases and records, so their size is bounded.
func limits() []limit {
	return []limit{
		{unix.RLIMIT_CORE, 1},
		{unix.RLIMIT_FSIZE, 8 << 20},
		{unix.RLIMIT_NOFILE, 512},
		{unix.RLIMIT_NPROC, maxPIDs},
	}
}

// Start runs the host's program inside the cell with cmd's arguments and files, and the slot as one
// more inherited file. If the cell has a VF, the process may pin memoryMiB for DMA.
func (c *Cell) Start(cmd *exec.Cmd, memoryMiB int) error {
	dir, err := c.group.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	r, err := c.host.stock.take()
	if err != nil {
		return err
	}
	defer r.close()
	o := order{c.User, limits(), r, c.host.filter, unix.CLONE_NEWPID}
	if c.pci != nil {
		o.limits = append(o.limits, limit{unix.RLIMIT_MEMLOCK, uint64(memoryMiB) << 20})
	}
	if c.host.relax != nil {
		c.host.relax(&o)
	}
	c.order(cmd, o)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true, Cloneflags: o.flags,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.host.program, err)
	}
	c.proc = child(cmd)
	c.proc.ticks, err = procfs.StartTicks(c.proc.pid)
	if errors.Is(err, procfs.ErrNoProcess) {
		<-c.proc.done
		err = errors.New(c.proc.how)
	}
	if err != nil {
		return fmt.Errorf("%s ended at once: %w", filepath.Base(c.host.program), err)
	}
	return nil
}

// launcherEnv keeps Go's runtime in the launcher small, and keeps signals away from its last two
// system calls.
var launcherEnv = []string{"GOMAXPROCS=1", "GOGC=off",
	"GODEBUG=asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0"}

// order turns cmd into the launcher's command: see vmm.
func (c *Cell) order(cmd *exec.Cmd, o order) {
	var bounds []string
	for _, l := range o.limits {
		bounds = append(bounds, fmt.Sprintf("%d=%d", l.resource, l.value))
	}
	device := ""
	if c.pci != nil {
		device = fmt.Sprintf("%s,%d,%s", Group(c.pci.Group), c.device, Device(c.pci.BDF))
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, c.slot.file)
	first := 3 + len(cmd.ExtraFiles)
	cmd.ExtraFiles = slices.Concat(cmd.ExtraFiles, o.room.files(), []*os.File{o.filter})
	cmd.Args = slices.Concat([]string{beside.Launcher.Name, strconv.Itoa(o.user),
		strings.Join(bounds, ","), strconv.Itoa(first), device,
		c.host.program}, cmd.Args)
	// the launcher that the host opened, even if its file has been replaced since
	cmd.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.host.launcher.Fd())
	cmd.Env = launcherEnv
}

// Group returns the path of a VFIO group's node in a room. Device returns the path of a VF's
// directory: as in sysfs, its name is the VF's address, and it contains a link to the group.
func Group(node string) string { return "/dev/vfio/" + filepath.Base(node) }

// Device returns the path in a room of the directory of the VF at bdf.
func Device(bdf string) string { return vfDir + "/" + bdf }
