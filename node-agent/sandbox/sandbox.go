// Package sandbox is the seam between the startup pipeline and the place where a function runs: a
// QEMU microVM, a bare VFIO process without a guest, or a simulation. One conformance suite
// (sandboxtest) runs over every driver.
package sandbox

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A Spec is all a driver needs to start one sandbox. Memory and NIC have been reserved and wired by
// the pipeline before it is made.
type Spec struct {
	ID string
	// The sandbox's run directory. The caller makes it, and removes it after the end.
	Dir  string
	Root string // root image, a read-only erofs file
	// Files that hold the image's contents, if it has none itself: with it, in this order, they
	// make up the disk.
	Layers    []string `json:",omitempty"`
	Program   wire.Program
	Sidecars  []Sidecar `json:",omitempty"` // for a driver that is a Companion
	MemoryMiB int
	CPU       CPU  `json:",omitzero"`
	NIC       *NIC // nil: no network
	// What runs the sandbox, for a driver that is a Chooser; empty: its first.
	Handler string `json:",omitempty"`
}

// A Sidecar is a program that runs in a sandbox beside the one that serves. They share the
// sandbox's network, so each finds the others at localhost, its bounds and its life: when one ends,
// the sandbox does.
type Sidecar struct {
	Name    string // the lines of its log have it
	Root    string
	Layers  []string `json:",omitempty"`
	Program wire.Program
}

// CPU says, in thousandths of one, what a sandbox has of the CPUs where its driver deals them out.
type CPU struct {
	Request int // its part where others want it, too; 0: as its memory says
	Limit   int // at most; 0: no bound
}

// A NIC is a sandbox's way to the network, as a driver sees it. A guest finds it by its MAC.
type NIC struct {
	Kind    string // of the path to the network, see node-agent/netpath
	MAC     string
	Address netip.Prefix
	Gateway netip.Addr
	DNS     netip.Addr
	PCI     *PCI `json:",omitempty"` // the device that is handed through; nil: none is
}

// PCI is a device that the sandbox has to itself: a microVM by vfio, a container as a network
// interface.
type PCI struct {
	BDF   string // 0000:01:10.0
	Group string // /dev/vfio/N, which is there while vfio has the device
}

// Device returns the address of the NIC's device, or "".
func (n *NIC) Device() string {
	if n == nil || n.PCI == nil {
		return ""
	}
	return n.PCI.BDF
}

// PCI returns the device that the sandbox has to itself, or nil.
func (s Spec) PCI() *PCI {
	if s.NIC == nil {
		return nil
	}
	return s.NIC.PCI
}

// A Record is the journal's entry about a running sandbox, enough for a restarted agent to adopt or
// end it.
type Record struct {
	Version int // of what a record holds and of how its guest is spoken to
	Spec    Spec
	PID     int
	// From /proc/PID/stat, field 22. With PID it names one process, also after PID reuse.
	StartTicks uint64

	// Secret is shared by the sandbox's guest and the agent. No other user may read the record.
	Secret door.Secret `json:",omitzero"`
}

// A Driver starts sandboxes. Implementations are safe for use by many goroutines.
type Driver interface {
	// Start returns when the runtime in the sandbox accepts requests, or with everything it made
	// undone. As soon as there is a process, and before that process touches the NIC, it calls
	// owned with the record by which the sandbox can be adopted; an error from owned ends the
	// start.
	Start(ctx context.Context, spec Spec, tl *timeline.Timeline,
		owned func(Record) error) (Sandbox, error)
	// Adopt takes over a sandbox that a former agent started. It fails unless pid, start time and
	// the sandbox's own answer all agree with the record; the caller then calls End. If ctx ends
	// with the cause ErrLetGo, it lets go of the sandbox.
	Adopt(ctx context.Context, rec Record) (Sandbox, error)
	// End kills whatever a former agent left of the sandbox (by its cgroup, not by pid) and returns
	// when it is gone. It cannot fail and may run twice.
	End(spec Spec)
	// Leftovers lists, one line each, the processes, cgroups, sockets and the like of this driver
	// that belong to no sandbox in live. Each line ends with the sandbox's id, alone or before a
	// dot, after a space or a slash.
	Leftovers(live map[string]bool) []string
}

// A Chooser is a driver with several ways to run a sandbox.
type Chooser interface {
	// Offers returns nil if the driver has that handler, or else what it has.
	Offers(handler string) error
}

// A Companion is a driver whose sandboxes may have sidecars.
type Companion interface {
	// TakesSidecars returns nil if those of a handler that the driver offers may, or why not.
	TakesSidecars(handler string) error
}

// A Sandbox is one started sandbox.
type Sandbox interface {
	// Dial connects to a TCP port of the sandbox's own loopback. An error means that nobody there
	// has seen a byte. The connection can be closed one way (CloseWrite); it ends with the sandbox,
	// whose end is then the error of who reads it, and with a Pause.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Pause takes the CPU from the sandbox, which keeps all else. Nothing may be under way in it.
	// Pausing a paused sandbox does nothing. A Pause or Resume that has begun is completed even if
	// its caller gives up. A sandbox that does not answer within the driver's own bound is ended.
	// One whose NIC is coming up is not paused: ErrComingUp.
	Pause(ctx context.Context) error
	// Resume gives the CPU back and returns when the sandbox can be dialled and tells the right
	// time. Resuming a running sandbox does nothing.
	Resume(ctx context.Context) error
	// Logs returns what the runtime writes. It ends with the sandbox, or before the first line if
	// there is no runtime that could write.
	Logs() *tail.Log
	// Done is closed when the sandbox has ended, by whatever cause; Err then says why (nil: Close).
	// Where its NIC was the cause, that is wire.ErrNIC.
	Done() <-chan struct{}
	Err() error
	// Close ends the sandbox and returns when nothing of it is left. It cannot fail and may run
	// twice.
	Close()
}

// An Executor is a sandbox that can run a program beside its own, and as that.
type Executor interface {
	// Exec returns the exit status of the program when it has ended. It is killed with ctx. Where
	// others are made all the time, ctx may end before its turn: ErrBusy.
	Exec(ctx context.Context, command []string) (status int, err error)
}

// A Renewer is a sandbox that can put other files into the places of those that its program was
// given.
type Renewer interface {
	// Renew does so for the sidecar of that name, or without one for the sandbox's own program. The
	// mounts are all that it has, in their order; each has the files alone that are new. ErrEnded:
	// the sandbox needs them no more.
	Renew(sidecar string, all []wire.Mount) error
}

// ErrEnded is the error of what came too late.
var ErrEnded = errors.New("the sandbox has ended")

// ErrBusy is the error of a program that was not run: the node had others to make.
var ErrBusy = errors.New("the node makes other programs all the time")

// A Weigher is a sandbox that can tell how much of its memory there is.
type Weigher interface {
	Weigh(at timeline.Moment) (timeline.Footprint, error)
}

// A Gated sandbox is one whose NIC may come up while its program runs. Gate tells how, or false if
// this one's was up before; then Opened is nil. Else it is closed when the NIC is up.
type Gated interface {
	Gate() (timeline.Gate, bool)
	Opened() <-chan struct{}
}

// ErrUnreached is the error of a request that could not be sent: the runtime has seen nothing of
// it.
var ErrUnreached = errors.New("not reached")

// ErrComingUp is the error of a Pause that came before the sandbox's NIC was up.
var ErrComingUp = errors.New("its NIC is still coming up; ask again when it is up")

// ErrLetGo is the Err of a sandbox whose driver was closed: it lives on, for a later agent to
// adopt.
var ErrLetGo = errors.New("its agent has closed")

// A NICFault is the Err of a sandbox that ended because its NIC reported an error.
type NICFault struct{ Why string }

func (f *NICFault) Error() string { return "NIC error: " + f.Why }
func (f *NICFault) Unwrap() error { return wire.ErrNIC }
