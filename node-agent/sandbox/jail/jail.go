// Package jail confines the one process of a sandbox: its own user, its own cgroup, and of all VFIO nodes only its own.
//
//	Build   cgroup made, user chosen, VFIO node handed to that user      nothing runs yet
//	Start   the process is born inside the cgroup as that user           it waits for the driver before it touches the VF
//	Close   cgroup killed, VFIO node given back to root, user free again
//
// A user is a slot: a number that no other living sandbox has. The kernel keeps the register. A slot is taken by binding the
// abstract socket fastiov/slot/N and passing that socket to the process, so it is free exactly when the process is gone,
// whoever died first, agent or VMM. The uid, the gid and the vsock CID of a sandbox are all this one number.
package jail

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"sync"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
)

const maxPIDs = 128 // a VMM's threads: one per CPU, its main loop, and up to 64 workers that the guest's disk requests may call up

var goodID = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// A Host is where sandboxes are built: one per agent.
type Host struct{ root *cgroup.Root }

// Open prepares the host under the cgroup directory name. Limits that the host cannot enforce are said once, here.
func Open(name string, log *slog.Logger) (*Host, error) {
	root, err := cgroup.Open(name)
	if err != nil {
		return nil, err
	}
	if len(root.Missing) > 0 {
		log.Warn("sandboxes run without some limits: the host's cgroup v2 hierarchy lacks controllers", "missing", root.Missing)
	}
	return &Host{root: root}, nil
}

// Close removes the cgroup directory if no sandbox is left in it.
func (h *Host) Close() { h.root.Remove() }

// A Cell is the confinement of one sandbox.
type Cell struct {
	User  int // uid, gid and vsock CID
	group *cgroup.Group
	slot  *os.File
	node  string // /dev/vfio/N, or empty
	proc  *process
	close sync.Once
}

// Build makes the cell of a sandbox that may use memoryMiB in all: the guest's memory and the VMM's own.
func (h *Host) Build(spec sandbox.Spec, memoryMiB int) (*Cell, error) {
	if !goodID.MatchString(spec.ID) {
		return nil, fmt.Errorf("sandbox id %q: want %s", spec.ID, goodID)
	}
	group, err := h.root.Create(spec.ID, cgroup.Limits{MemoryMiB: memoryMiB, PIDs: maxPIDs})
	if err != nil {
		return nil, err
	}
	c := &Cell{group: group}
	if c.User, c.slot, err = takeSlot(); err != nil {
		c.Close()
		return nil, err
	}
	if spec.VF != nil {
		c.node = spec.VF.Group
		if err := own(c.node, c.User); err != nil {
			c.Close()
			return nil, fmt.Errorf("VF %s cannot be handed over: %w", spec.VF.BDF, err)
		}
	}
	return c, nil
}

// Close ends the sandbox's process and returns when nothing of the cell is left. It may run twice.
func (c *Cell) Close() {
	c.close.Do(func() {
		c.group.Kill()
		if c.proc != nil {
			<-c.proc.done
			c.proc.release()
		}
		if c.node != "" {
			_ = own(c.node, 0)
		}
		if c.slot != nil {
			c.slot.Close()
		}
	})
}

// Freeze stops the cell's process where it is; Thaw lets it go on, and bears that it was not stopped.
func (c *Cell) Freeze() error { return c.group.Freeze() }

// Thaw undoes Freeze.
func (c *Cell) Thaw() error { return c.group.Thaw() }

// LetGo leaves the cell as it is to a later agent.
func (c *Cell) LetGo() {
	c.close.Do(func() {
		if c.slot != nil {
			c.slot.Close()
		}
	})
}

// End does what Close does for a sandbox that a former agent left. It cannot fail and may run twice.
func (h *Host) End(spec sandbox.Spec) {
	h.root.Group(spec.ID).Kill()
	if spec.VF != nil {
		_ = own(spec.VF.Group, 0)
	}
}

// own gives a VFIO group node to one user alone.
func own(node string, user int) error {
	if err := os.Chmod(node, 0o600); err != nil {
		return err
	}
	return os.Chown(node, user, user)
}
