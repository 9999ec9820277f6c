package vf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/procfs"
)

// A Kind names the sort of holder that a lease has, and so the rule by which it counts as alive.
type Kind string

const (
	Sandbox Kind = "sandbox" // of this node's agent
	Pod     Kind = "pod"     // of a container runtime, which names it by its network namespace
	Device  Kind = "device"  // a process that has the VF to itself
	Bench   Kind = "bench"   // a measurement
)

// Kinds lists every Kind.
var Kinds = []Kind{Sandbox, Pod, Device, Bench}

// An Owner is the holder of a lease.
type Owner struct {
	Kind       Kind   `json:"kind,omitempty"`        // version 1 of the journal has sandboxes only
	Name       string `json:"sandbox"`               // the key is that of version 1
	Netns      string `json:"netns,omitempty"`       // of a pod: the path of its network namespace
	NetnsInode uint64 `json:"netns_inode,omitempty"` // tells it from others of its time
	// NetnsCookie tells it from all others: an inode may be a later one's.
	NetnsCookie uint64 `json:"netns_cookie,omitempty"`
	PID         int    `json:"pid,omitempty"`         // the process that uses the VF
	StartTicks  uint64 `json:"start_ticks,omitempty"` // tells it from a later one with its PID
}

// String returns the name of a sandbox alone; the name of any other holder comes with its kind.
func (o Owner) String() string {
	if o.Kind == Sandbox || o.Kind == "" {
		return o.Name
	}
	return string(o.Kind) + "/" + o.Name
}

// holders has a row for each kind: the fields that an owner must have, and the rule by which it is
// dead.
var holders = map[Kind]struct {
	needs string
	named func(Owner) bool
	dead  func(Owner) bool
}{
	Sandbox: {named: func(Owner) bool { return true }, dead: func(Owner) bool { return false }},
	Pod:     {"the path of its network namespace", hasNetns, netnsGone},
	Device:  {"its process", hasProcess, processGone},
	Bench:   {"its process", hasProcess, processGone},
}

// Check returns an error that names what an owner lacks to be given a lease.
func (o Owner) Check() error {
	row, known := holders[o.Kind]
	switch {
	case !known:
		return fmt.Errorf("a lease cannot be held by a %q; there are %v", o.Kind, Kinds)
	case o.Name == "":
		return fmt.Errorf("a lease needs the name of the %s that holds it", o.Kind)
	case !row.named(o):
		return fmt.Errorf("the lease of %s %s needs %s", o.Kind, o.Name, row.needs)
	}
	return nil
}

// Dead reports whether the holder is gone for sure. It never does so for a sandbox, whose end the
// agent knows by its records, nor for an owner that the journal could not name.
func (o Owner) Dead() bool {
	row, known := holders[o.Kind]
	return known && row.dead(o)
}

func hasNetns(o Owner) bool { return filepath.IsAbs(o.Netns) }

func netnsGone(o Owner) bool {
	inode, err := netnsInode(o.Netns)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	if o.NetnsInode == 0 || inode != o.NetnsInode {
		return o.NetnsInode != 0
	}
	cookie, err := netnsCookie(o.Netns)
	return err == nil && o.NetnsCookie != 0 && cookie != o.NetnsCookie
}

// netnsInode returns what tells a namespace from others; 0: there is none at that path.
func netnsInode(path string) (uint64, error) {
	var on unix.Statfs_t
	if err := unix.Statfs(path, &on); err != nil || on.Type != unix.NSFS_MAGIC {
		return 0, err
	}
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return s.Ino, err
}

// netnsCookie returns what the kernel gives to no other namespace, since Linux 5.14.
func netnsCookie(path string) (cookie uint64, err error) {
	namespace, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer namespace.Close()
	err = netns.Inside(namespace, func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}

// PodIn returns the owner that lives as long as the namespace which that path leads to now.
func PodIn(name, path string) Owner {
	o := Owner{Kind: Pod, Name: name, Netns: path}
	if o.NetnsInode, _ = netnsInode(path); o.NetnsInode != 0 { // else the path alone counts
		o.NetnsCookie, _ = netnsCookie(path)
	}
	return o
}

func hasProcess(o Owner) bool { return o.PID > 0 && o.StartTicks > 0 }

func processGone(o Owner) bool {
	ticks, err := procfs.StartTicks(o.PID)
	return errors.Is(err, procfs.ErrNoProcess) || err == nil && ticks != o.StartTicks
}

// Process returns the owner of that kind which lives as long as the process pid.
func Process(kind Kind, name string, pid int) (Owner, error) {
	ticks, err := procfs.StartTicks(pid)
	return Owner{Kind: kind, Name: name, PID: pid, StartTicks: ticks}, err
}
