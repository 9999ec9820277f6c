// Package jail confines the one process of a sandbox, its VMM. The VMM has its own user and cgroup,
// a room that contains only what it needs, limits, and only the system calls that it has a use for.
//
//	Build   makes the cgroup and chooses the user; nothing runs yet
//	Start   the launcher is born inside the cgroup, as process 1 of a pid namespace. It enters a
//	        room that was made ahead, makes the node of its VFIO group there, and becomes the VMM,
//	        which waits for the driver before it touches the VF
//	Close   kills the cgroup; the room goes with its process, and the user is free again
//
// Slow things are made ahead: the house (house.go), which all rooms share, and the rooms (room.go).
// A start needs only a clone, the launcher's exec (vmm/), four changes of namespace, a mknod and
// the VMM's exec, but no mount.
//
// A user is a slot: a number that no other living sandbox has (slot.go). This number is the uid,
// the gid and the vsock CID of a sandbox.
package jail

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail/filter"
)

// The threads of a VMM: one for each CPU, its main loop, and up to 64 workers for the guest's disk
// requests.
const maxPIDs = 128

var goodID = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// Config describes what runs in a host's cells.
type Config struct {
	Name       string   // the name of the cgroup directory
	Root       string   // the directory that stands for "/" to the paths below; "" means "/"
	Program    string   // the path of the VMM
	Data       []string // files and directories that the VMM reads
	Rooms      int      // how many rooms are kept ready
	BestEffort bool     // accept a host without a required controller; rlimits replace it
	Log        *slog.Logger
}

// A Host builds sandboxes. An agent has one.
type Host struct {
	log      *slog.Logger
	root     *cgroup.Root
	program  string // where it lies in a room
	launcher *os.File
	calls    filter.Filter
	filter   *os.File // its instructions
	house    house
	stock    *stock
	relax    func(*order) // tests remove a measure with it

	mu    sync.Mutex
	users map[string]int // users of the sandboxes that are known to live, also of former agents
}

// Open prepares the host. It returns an error for limits that it cannot enforce, unless config asks
// for best effort.
func Open(config Config) (*Host, error) {
	h := &Host{log: config.Log, users: map[string]int{}}
	if err := h.open(config); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *Host) open(config Config) (err error) {
	if h.root, err = cgroup.Open(config.Name); err != nil {
		return err
	}
	if err := h.enforceable(config); err != nil {
		return err
	}
	for _, id := range h.root.Names() {
		for _, pid := range h.root.Group(id).PIDs() {
			h.occupy(id, userOf(pid))
		}
	}
	root, err := filepath.EvalSymlinks(cmp.Or(config.Root, "/"))
	if err != nil {
		return err
	}
	if h.program, err = resolve(root, config.Program); err != nil {
		return err
	}
	if h.launcher, err = beside.Launcher.Open(context.Background()); err != nil {
		return err
	}
	if h.calls, err = filter.For(filepath.Join(root, h.program)); err != nil {
		return err
	}
	if !h.calls.Known() {
		config.Log.Warn(
			"the VMM is of no known build: it may make all but the dangerous system calls; "+
				"fastiov doctor names the known ones", "program", h.program)
	}
	if h.filter, err = sealed(h.calls); err != nil {
		return err
	}
	if h.house, err = newHouse(root, slices.Concat([]string{h.program}, config.Data)); err != nil {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	rooms := stockable(config.Rooms, files.Cur)
	if rooms < config.Rooms {
		config.Log.Warn(
			"fewer rooms are kept ready than wanted; raise the limit of open files (ulimit -n)",
			"rooms", rooms, "wanted", config.Rooms, "limit", files.Cur)
	}
	h.stock = newStock(h.house.newRoom, rooms, config.Log)
	return nil
}

// enforceable returns an error if a limit cannot be enforced and config does not ask for best
// effort.
func (h *Host) enforceable(config Config) error {
	missing, why := h.root.Missing, h.root.Why
	switch {
	case len(missing) == 0:
		return nil
	case !config.BestEffort:
		return fmt.Errorf(
			"limits of sandboxes cannot be enforced: of cgroup v2's controllers %q cannot be "+
				"used: %w; boot with systemd.unified_cgroup_hierarchy=1, or accept rlimits in their place by "+
				"--limits=best-effort", missing, why)
	default:
		config.Log.Warn(
			"sandboxes run without some limits: controllers of cgroup v2 cannot be used",
			"missing", missing, "err", why)
		return nil
	}
}

// sealed returns the filter in a sealed file for the launcher.
func sealed(f filter.Filter) (*os.File, error) {
	code, err := f.Bytes()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("filter", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "filter")
	if _, err = file.Write(code); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	return file, err
}

// Confinement describes for people how VMMs are confined.
func (h *Host) Confinement() string {
	says := h.calls.Says
	if missing := h.root.Missing; len(missing) > 0 {
		says += fmt.Sprintf("; limits best effort, without %q", missing)
	}
	if unweighted := h.root.Unweighted; len(unweighted) > 0 {
		says += fmt.Sprintf("; no weights of %q", unweighted)
	}
	return says
}

// MadeOnPath counts the rooms that starts had to wait for because the stock was empty.
func (h *Host) MadeOnPath() int64 { return h.stock.onPath.Load() }

// Stocked reports whether the stock of rooms is full.
func (h *Host) Stocked() bool { return len(h.stock.rooms) == cap(h.stock.rooms) }

// Close removes the cgroup directory if no sandbox is left in it.
func (h *Host) Close() {
	if h.stock != nil {
		h.stock.close()
	}
	for _, f := range []*os.File{h.launcher, h.filter, h.house.mounts} {
		if f != nil {
			f.Close()
		}
	}
	if h.root != nil {
		h.root.Remove()
	}
}

func (h *Host) occupy(id string, user int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if isUser(user) {
		h.users[id] = user
	}
}

func (h *Host) vacate(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.users, id)
}

func (h *Host) lives(user int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.users {
		if u == user {
			return true
		}
	}
	return false
}

// A Cell is the confinement of one sandbox.
type Cell struct {
	User   int // uid, gid and vsock CID
	host   *Host
	id     string
	group  *cgroup.Group
	slot   *slot
	pci    *sandbox.PCI
	device int // of its group
	proc   *process
	close  sync.Once
	events string // events of its cgroup, after Close
}

// Build makes the cell of a sandbox that may use memoryMiB for the guest's memory and the VMM's
// own.
func (h *Host) Build(spec sandbox.Spec, memoryMiB int) (*Cell, error) {
	if !goodID.MatchString(spec.ID) {
		return nil, fmt.Errorf("sandbox id %q: want %s", spec.ID, goodID)
	}
	c := &Cell{host: h, id: spec.ID, pci: spec.PCI()}
	if c.pci != nil {
		var node unix.Stat_t
		if err := unix.Stat(c.pci.Group, &node); err != nil {
			err = &os.PathError{Op: "stat", Path: c.pci.Group, Err: err}
			return nil, fmt.Errorf("VF %s cannot be handed over: %w", c.pci.BDF, err)
		}
		c.device = int(node.Rdev)
	}
	var err error
	if c.group, err = h.root.Create(spec.ID,
		cgroup.Limits{MemoryMiB: memoryMiB, PIDs: maxPIDs}); err != nil {
		return nil, err
	}
	if c.slot, err = takeSlot(h.lives); err != nil {
		c.Close()
		return nil, err
	}
	c.User = c.slot.user
	h.occupy(spec.ID, c.User)
	return c, nil
}

// Close ends the sandbox's process and returns when nothing of the cell is left. It may run twice.
func (c *Cell) Close() {
	c.close.Do(func() {
		c.events = c.group.Events()
		c.host.kill(c.group, c.id)
		if c.proc != nil {
			<-c.proc.done
			c.proc.release()
		}
		if c.slot != nil {
			c.slot.release()
		}
		giveBack(c.pci)
		c.host.vacate(c.id)
	})
}

// Events returns how often the cell met its limits, as the kernel counted it. It returns nothing
// before Close.
func (c *Cell) Events() string { return c.events }

// Freeze stops the cell's process. Thaw lets it go on.
func (c *Cell) Freeze() error { return c.group.Freeze() }

// Thaw undoes Freeze. If the process was not frozen, it does nothing.
func (c *Cell) Thaw() error { return c.group.Thaw() }

// LetGo leaves the cell to a later agent.
func (c *Cell) LetGo() { c.close.Do(func() { c.slot.file.Close() }) }

// End ends what is left of a sandbox under the cgroup directory name, without a Host. It may run
// twice.
func End(name string, spec sandbox.Spec) error {
	root, err := cgroup.Open(name)
	if err != nil {
		return err
	}
	err = root.Group(spec.ID).Kill()
	giveBack(spec.PCI())
	root.Remove()
	return err
}

// End does what Close does, for a sandbox of a former agent. It cannot fail and may run twice.
func (h *Host) End(spec sandbox.Spec) {
	h.kill(h.root.Group(spec.ID), spec.ID)
	giveBack(spec.PCI())
	h.vacate(spec.ID)
}

// giveBack makes root the owner of the device's node again. A former version gave the node to the
// sandbox's user; today a room has its own node.
func giveBack(pci *sandbox.PCI) {
	if pci == nil {
		return
	}
	var node unix.Stat_t
	if unix.Lstat(pci.Group, &node) == nil && isUser(int(node.Uid)) {
		_ = unix.Lchown(pci.Group, 0, 0)
	}
}

// kill ends the processes in a sandbox's cgroup, and logs those that stay.
func (h *Host) kill(group *cgroup.Group, id string) {
	if err := group.Kill(); err != nil {
		h.log.Error("a sandbox has not ended in full", "sandbox", id, "error", err)
	}
}
