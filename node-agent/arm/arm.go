// Package arm names the ways to start a microVM that are compared with each other, and switches the
// host's kernel to one of them.
//
// An arm is a value for each axis. The axes L, S, A and D are those of the FastIOV paper; the
// barrier and R are fastiov's. Some arms have names, and a baseline is an arm that is measured
// against and that no node should have.
package arm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// An Arm is one way to start a microVM.
type Arm struct {
	Lock    Lock            // L: which opening VFs wait for each other
	Root    Root            // S: what of the root image is mapped for DMA
	Async   bool            // A: the VF comes up while the application starts
	Memory  fastiovd.Policy // D: when guest memory is zeroed
	Barrier Barrier         // what keeps the VF from memory that is not zeroed
	Reset   bool            // R: a VF that nobody has touched since its reset is not reset again

	NoNet  bool // a baseline: the microVM has no network
	Tap    bool // a baseline, and what a host without VFs has: a tap of a bridge in their place
	Netdev bool // of containers alone: each has a VF as a network interface of this kernel
	Zeroed int  // a baseline: percent of the guest's memory that were zeroed before the start
}

// Lock is a way to lock VFs that are opened at the same time.
type Lock string

// The locks of old kernels, of today's, and of the paper.
const (
	Bus          Lock = "bus"          // all VFs of a bus wait for each other
	PerVF        Lock = "per-vf"       // each VF by itself
	Hierarchical Lock = "hierarchical" // all VFs of a bus, under a lock that openings share
)

// A Root is a form of the root image.
type Root string

// The forms. A region is memory of the guest, as Kata's image is: a read-only NVDIMM.
const (
	Region   Root = "0"       // mapped for the VF's DMA, as all memory is
	Disk     Root = "1"       // a block device: there is nothing to map
	Unmapped Root = "dma-off" // a region that fastiov's patched QEMU does not map
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

// The named arms.
var (
	// a stock kernel; the root image is a block device, so no region has to be skipped
	None = Arm{Lock: PerVF, Root: Disk, Memory: fastiovd.Eager, Barrier: Strict}
	// the default of a node whose kernel supports it
	All = Arm{Lock: PerVF, Root: Disk, Async: true, Memory: fastiovd.PageCache, Barrier: Strict,
		Reset: true}
	// the paper's optimisations, as published
	Paper = Arm{Lock: Hierarchical, Root: Disk, Async: true, Memory: fastiovd.Table,
		Barrier: NoBarrier}
	// none as it was when the paper was written: the VFs of a bus shared a lock
	Paper2024 = Arm{Lock: Bus, Root: Disk, Memory: fastiovd.Eager, Barrier: Strict}
	// the baseline without a network: what any way of passing a VF through adds to
	NoNet = Arm{Lock: PerVF, Root: Disk, Memory: fastiovd.Eager, Barrier: Strict, NoNet: true}
	// the software network
	Tap = Arm{Lock: PerVF, Root: Disk, Memory: fastiovd.Eager, Barrier: Strict, Tap: true}
	// containers on VFs, where none has them on a bridge
	Netdev = Arm{Lock: PerVF, Root: Disk, Memory: fastiovd.Eager, Barrier: Strict, Netdev: true}
)

var named = []struct {
	name string
	arm  Arm
}{
	{"none", None}, {"paper", Paper}, {"all", All}, {"paper-2024", Paper2024}, {"nonet", NoNet},
	{"tap", Tap}, {"netdev", Netdev}, {"pre10", preZeroed(10)}, {"pre50", preZeroed(50)},
	{"pre100", preZeroed(100)},
}

func preZeroed(percent int) Arm {
	a := None
	a.Zeroed = percent
	return a
}

// An axis is one choice of an arm.
type axis struct {
	name   string
	values []string
	get    func(Arm) string
	set    func(*Arm, string)
}

var axes = []axis{
	{"l", []string{string(Bus), string(PerVF), string(Hierarchical)},
		func(a Arm) string { return string(a.Lock) },
		func(a *Arm, value string) { a.Lock = Lock(value) }},
	{"s", []string{string(Region), string(Disk), string(Unmapped)},
		func(a Arm) string { return string(a.Root) },
		func(a *Arm, value string) { a.Root = Root(value) }},
	flag("a", func(a *Arm) *bool { return &a.Async }),
	{"d", policies(), func(a Arm) string { return string(a.Memory) },
		func(a *Arm, value string) { a.Memory = fastiovd.Policy(value) }},
	{"barrier", []string{string(NoBarrier), string(Strict), string(Coop)},
		func(a Arm) string { return string(a.Barrier) },
		func(a *Arm, value string) { a.Barrier = Barrier(value) }},
	flag("r", func(a *Arm) *bool { return &a.Reset }),
}

func flag(name string, of func(*Arm) *bool) axis {
	return axis{name, []string{"0", "1"},
		func(a Arm) string {
			if *of(&a) {
				return "1"
			}
			return "0"
		},
		func(a *Arm, value string) { *of(a) = value == "1" }}
}

func policies() (values []string) {
	for _, p := range fastiovd.Policies {
		values = append(values, string(p))
	}
	return values
}

// Parse reads an arm: a name, or a name and the axes in which the arm differs from it, as in
// "all,r=0". Without a name the axes are those in which it differs from none, as in "l=bus,r=1".
func Parse(text string) (Arm, error) {
	words := strings.Split(text, ",")
	a := None
	if !strings.Contains(words[0], "=") {
		base, err := byName(words[0])
		if err != nil {
			return Arm{}, err
		}
		a, words = base, words[1:]
	}
	if len(words) > 0 && !a.ByVFIO() {
		return Arm{}, fmt.Errorf("%s has no VF by vfio for %s to concern: leave it out", a,
			strings.Join(words, ","))
	}
	given := map[string]bool{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if given[name] {
			return Arm{}, fmt.Errorf("%q has %s twice: which one holds?", text, name)
		}
		given[name] = true
		if err := a.turn(word, name, value); err != nil {
			return Arm{}, err
		}
	}
	if err := a.check(); err != nil {
		return Arm{}, err
	}
	return a, nil
}

// ParseList reads arms that are separated by spaces. No two may be the same.
func ParseList(text string) (arms []Arm, err error) {
	for _, word := range strings.Fields(text) {
		a, err := Parse(word)
		if err != nil {
			return nil, err
		}
		if slices.Contains(arms, a) {
			return nil, fmt.Errorf("%s is there twice (%s): an arm is compared with others", word,
				a)
		}
		arms = append(arms, a)
	}
	if len(arms) == 0 {
		return nil, fmt.Errorf("no arms: %s, separated by spaces", usage())
	}
	return arms, nil
}

func byName(name string) (Arm, error) {
	for _, n := range named {
		if n.name == name {
			return n.arm, nil
		}
	}
	return Arm{}, fmt.Errorf("%q is no arm: %s", name, usage())
}

// usage says what there is.
func usage() string {
	var names, choices []string
	for _, n := range named {
		names = append(names, n.name)
	}
	for _, x := range axes {
		choices = append(choices, x.name+"="+strings.Join(x.values, "|"))
	}
	return "use " + strings.Join(names, ", ") + ", or some of " + strings.Join(choices, ", ") +
		", joined by commas"
}

// turn sets one axis.
func (a *Arm) turn(word, name, value string) error {
	i := slices.IndexFunc(axes, func(x axis) bool { return x.name == name })
	switch {
	case i < 0 && !strings.Contains(word, "="):
		return fmt.Errorf("%q is no axis: a name comes first, and spaces are between arms", word)
	case i < 0:
		return fmt.Errorf("%q is no axis: %s", word, usage())
	case !slices.Contains(axes[i].values, value):
		return fmt.Errorf("%q: %s is %s", word, name, strings.Join(axes[i].values, ", "))
	}
	axes[i].set(a, value)
	return nil
}

// check refuses combinations that make no sense.
func (a Arm) check() error {
	switch {
	case a.Zeroed > 0 && a.Memory != fastiovd.Eager:
		return fmt.Errorf(
			"with pre%d memory is zeroed before the start, so d=%s has nothing to defer: use d=eager",
			a.Zeroed, a.Memory)
	case a.Memory == fastiovd.Table && a.Barrier != NoBarrier:
		return errors.New(
			"with d=table devices read old data of others, and no barrier helps: say barrier=none too, or use d=pagecache")
	case a.Barrier == Coop && a.Memory != fastiovd.PageCache:
		return fmt.Errorf(
			"with d=%s there is nothing for a guest to keep its VF from: barrier=coop is for d=pagecache",
			a.Memory)
	case a.Barrier == NoBarrier && (a.Memory == fastiovd.Eager || a.Memory == fastiovd.TouchMap):
		return fmt.Errorf(
			"with d=%s all that a VF reaches is zeroed, so no barrier is there to leave out: barrier=none is for d=pagecache and d=table",
			a.Memory)
	}
	return nil
}

// ByVFIO reports whether the microVM has a VF by vfio.
func (a Arm) ByVFIO() bool { return !a.NoNet && !a.Tap && !a.Netdev }

// HasRegion reports whether the guest has its root image as memory.
func (a Arm) HasRegion() bool { return a.Root == Region || a.Root == Unmapped }

// TouchFirst reports whether the guest has to touch memory before it gives it to its VF.
func (a Arm) TouchFirst() bool {
	return a.Memory == fastiovd.TouchMap || a.Memory == fastiovd.Table || a.Barrier == Coop
}

// Differing returns the axes in which a differs from b.
func (a Arm) Differing(b Arm) (names []string) {
	for _, x := range axes {
		if x.get(a) != x.get(b) {
			names = append(names, x.name)
		}
	}
	return names
}

// String returns the arm's name, or the axes in which it differs from the arm that it begins with:
// Parse's notation.
func (a Arm) String() string {
	for _, n := range named {
		if n.arm == a {
			return n.name
		}
	}
	var words []string
	base := None
	if a.Zeroed > 0 {
		base = preZeroed(a.Zeroed)
		words = append(words, "pre"+strconv.Itoa(a.Zeroed))
	}
	for _, x := range axes {
		if value := x.get(a); value != x.get(base) {
			words = append(words, x.name+"="+value)
		}
	}
	return strings.Join(words, ",")
}

// Default returns All if the kernel is fastiov's, else None.
func Default() Arm {
	if _, err := os.Stat(fastiovd.Device); err != nil {
		return None
	}
	return All
}
