package fastiovd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A Set is one point of the ablation: it turns each of fastiov's ways to start a VM on or off.
type Set struct {
	Lock    Lock    // L: which opening VFs wait for each other
	Reset   bool    // R: a VF that nobody has touched since its reset is not reset again
	Memory  Policy  // D: when guest memory is zeroed
	Barrier Barrier // what keeps the VF from memory that is not zeroed
}

// Lock is a way to lock VFs that are opened at the same time.
type Lock string

// The locks of old kernels, of today's, and of the paper.
const (
	Bus          Lock = "bus"          // all VFs of a bus wait for each other
	PerVF        Lock = "per-vf"       // each VF by itself
	Hierarchical Lock = "hierarchical" // all VFs of a bus, under a lock that openings share
)

// A Barrier keeps a VF from memory that is not zeroed.
type Barrier string

// The barriers. Except with Strict, a VF can send old data of others out of the host.
const (
	// the kernel: the VF becomes a bus master only when all memory that it can reach is zeroed
	Strict Barrier = "strict"
	// the guest, which touches the memory that it gives to its VF: for trusted guests
	Coop      Barrier = "coop"
	NoBarrier Barrier = "none" // nothing: for measurements only
)

// The named sets.
var (
	None = Set{Lock: PerVF, Memory: Eager, Barrier: Strict} // a stock kernel
	// the default of a node whose kernel supports it
	All = Set{Lock: PerVF, Memory: PageCache, Barrier: Strict, Reset: true}
)

// Parse reads a set's name, "none" or "all", or the axes in which it differs from none, as in
// "l=bus,r=1,d=pagecache,barrier=none".
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
			return Set{}, fmt.Errorf(
				"%q is no part of a set: use none, all, or some of l=bus|per-vf|hierarchical, r=0|1, d=eager|pagecache|touchmap|table, "+
					"barrier=strict|coop|none, joined by commas", axis)
		}
	}
	switch {
	case s.Memory == Table && s.Barrier != NoBarrier:
		return Set{}, errors.New(
			"with d=table devices read old data of others, and no barrier helps: say barrier=none too, or use d=pagecache")
	case s.Barrier == Coop && s.Memory != PageCache:
		return Set{}, fmt.Errorf(
			"with d=%s there is nothing for a guest to keep its VF from: barrier=coop is for d=pagecache",
			s.Memory)
	}
	return s, nil
}

// TouchFirst reports whether the guest has to touch memory before it gives it to its VF.
func (s Set) TouchFirst() bool {
	return s.Memory == TouchMap || s.Memory == Table || s.Barrier == Coop
}

// String returns the set in Parse's notation.
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

// Default returns All if the kernel is fastiov's, else None.
func Default() Set {
	if _, err := os.Stat(device); err != nil {
		return None
	}
	return All
}

// sysModule is the directory of the kernel's switches. allowTable is a switch that is also used
// alone.
const (
	sysModule  = "/sys/module"
	allowTable = "fastiovd/parameters/allow_table"
)

// Apply sets the kernel's switches. The lock applies to VFs that are bound from now on. Under
// another kernel than fastiov's, only None can be applied.
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
			return fmt.Errorf(
				"--fastiov %s needs fastiov's kernel, and this one has no %s; boot it, or use --fastiov none",
				s, filepath.Base(p.name))
		case err != nil:
			return fmt.Errorf("switch the kernel to --fastiov %s: %w", s, err)
		}
	}
	return nil
}

// AllowTable makes the kernel accept memory with the policy Table until restore is called. By
// default the kernel refuses it.
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
