package fastiovd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A Set is one point of the ablation: each of fastiov's ways to start a VM, on or off.
type Set struct {
	Lock    Lock    // L: who waits for whom when VFs are opened
	Reset   bool    // R: a VF that nobody touched since its reset is not reset again
	Memory  Policy  // D: when guest memory is zeroed
	Barrier Barrier // who keeps the VF from memory that is not
}

// Lock is a way to lock VFs that are opened at the same time.
type Lock string

// The locks: that of old kernels, of today's, and of the paper.
const (
	Bus          Lock = "bus"          // all VFs of a bus wait for one another
	PerVF        Lock = "per-vf"       // each VF by itself
	Hierarchical Lock = "hierarchical" // all VFs of a bus under a lock that opening shares
)

// Barrier is who keeps a VF from memory that is not zeroed.
type Barrier string

// The barriers. But for Strict, old data of others can leave the host through a VF.
const (
	Strict    Barrier = "strict" // the kernel: the VF masters the bus only when all it can reach is zeroed
	Coop      Barrier = "coop"   // the guest, which touches what it gives to its VF: for guests that are trusted
	NoBarrier Barrier = "none"   // nobody: for measuring only
)

// The named sets.
var (
	None = Set{Lock: PerVF, Memory: Eager, Barrier: Strict}                  // a stock kernel
	All  = Set{Lock: PerVF, Memory: PageCache, Barrier: Strict, Reset: true} // what a node does if its kernel can
)

// Parse reads a set's name, "none" or "all", or the axes that differ from none, as in "l=bus,r=1,d=pagecache,barrier=none".
func Parse(text string) (Set, error) {
	switch text {
	case "none":
		return None, nil
	case "all":
		return All, nil
	}
	s := None
	for _, axis := range strings.Split(text, ",") {
		switch axis {
		case "l=bus", "l=per-vf", "l=hierarchical":
			s.Lock = Lock(strings.TrimPrefix(axis, "l="))
		case "r=0", "r=1":
			s.Reset = axis == "r=1"
		case "d=eager", "d=pagecache", "d=touchmap", "d=table":
			s.Memory = Policy(strings.TrimPrefix(axis, "d="))
		case "barrier=strict", "barrier=coop", "barrier=none":
			s.Barrier = Barrier(strings.TrimPrefix(axis, "barrier="))
		default:
			return Set{}, fmt.Errorf("%q is no part of a set: use none, all, or some of l=bus|per-vf|hierarchical, r=0|1, d=eager|pagecache|touchmap|table, "+
				"barrier=strict|coop|none, joined by commas", axis)
		}
	}
	switch {
	case s.Memory == Table && s.Barrier != NoBarrier:
		return Set{}, errors.New("with d=table devices read old data of others, and no barrier helps: say barrier=none too, or use d=pagecache")
	case s.Barrier == Coop && s.Memory != PageCache:
		return Set{}, fmt.Errorf("with d=%s there is nothing for a guest to keep its VF from: barrier=coop is for d=pagecache", s.Memory)
	}
	return s, nil
}

// TouchFirst says that the guest has to touch memory before it gives it to its VF.
func (s Set) TouchFirst() bool {
	return s.Memory == TouchMap || s.Memory == Table || s.Barrier == Coop
}

// String is the set as Parse reads it.
func (s Set) String() string {
	switch s {
	case None:
		return "none"
	case All:
		return "all"
	}
	reset := "0"
	if s.Reset {
		reset = "1"
	}
	return fmt.Sprintf("l=%s,r=%s,d=%s,barrier=%s", s.Lock, reset, s.Memory, s.Barrier)
}

// Default is All where the kernel is fastiov's, else None.
func Default() Set {
	if _, err := os.Stat(device); err != nil {
		return None
	}
	return All
}

// sysModule is where the kernel's switches are, allowTable one that is used alone too.
const (
	sysModule  = "/sys/module"
	allowTable = "fastiovd/parameters/allow_table"
)

// Apply switches the kernel. The lock is that of VFs bound from now on. On a kernel that is not fastiov's only None can be applied.
func (s Set) Apply() error { return s.apply(sysModule) }

func (s Set) apply(root string) error {
	for _, p := range []struct {
		name string
		on   bool
	}{
		{"vfio_pci_core/parameters/shared_vf_devset", s.Lock != PerVF},
		{"vfio/parameters/exclusive_devset", s.Lock == Bus},
		{"vfio_pci_core/parameters/elide_reset", s.Reset},
		{"vfio_pci_core/parameters/hold_master", s.Barrier == Strict},
		{allowTable, s.Memory == Table},
	} {
		err := turn(root, p.name, p.on)
		switch {
		case errors.Is(err, fs.ErrNotExist) && s == None:
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("--fastiov %s needs fastiov's kernel, and this one has no %s; boot it, or use --fastiov none", s, filepath.Base(p.name))
		case err != nil:
			return fmt.Errorf("switch the kernel to --fastiov %s: %w", s, err)
		}
	}
	return nil
}

// AllowTable has the kernel take memory with the policy Table, which it refuses at first, until restore.
func AllowTable() (restore func(), err error) {
	path := filepath.Join(sysModule, allowTable)
	before, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = os.WriteFile(path, before, 0) }, turn(sysModule, allowTable, true)
}

func turn(root, name string, on bool) error {
	value := "N"
	if on {
		value = "Y"
	}
	return os.WriteFile(filepath.Join(root, name), []byte(value), 0)
}
