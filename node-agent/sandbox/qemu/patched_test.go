//go:build patched

package qemu

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

var onPatchedKernel = testbed.Needs{NICs: 1, Images: []string{runtimeName},
	Kernel: testbed.PatchedKernel}

// subjectWith is the driver under test with the kernel switched to set.
func subjectWith(t *testing.T, set arm.Arm,
	hugePages bool) (sandboxtest.Subject, *kprobe.Probe) {
	t.Helper()
	if err := set.Apply(); err != nil {
		t.Fatal(err)
	}
	return subject(t, Config{Arm: set, HugePages: hugePages})
}

// all is arm.All with another policy, and with the barrier that there is for that.
func all(policy fastiovd.Policy) arm.Arm {
	set := arm.All
	set.Memory = policy
	if policy == fastiovd.Table {
		set.Barrier = arm.NoBarrier
	}
	return set
}

// trusting is arm.All for guests that are trusted.
func trusting() arm.Arm {
	set := arm.All
	set.Barrier = arm.Coop
	return set
}

func TestConformanceOnThePatchedKernel(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		for name, set := range map[string]arm.Arm{
			"pagecache": arm.All, "coop": trusting(), "touchmap": all(fastiovd.TouchMap),
			"table": all(fastiovd.Table),
		} {
			t.Run(name, func(t *testing.T) {
				s, _ := subjectWith(t, set, false)
				s.Run(t)
			})
		}
	})
}

// Between the begin of a start and its end a VF is reset twice, by its opening and by the VMM's
// machine reset. It is not reset at all if the kernel knows that nobody touched it since its last
// reset. That last reset happens when a VMM ends, however it ends.
func TestResetsOnTheWay(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		for _, c := range []struct {
			set  arm.Arm
			want uint64
		}{{arm.None, 2}, {arm.All, 0}} {
			s, probe := subjectWith(t, c.set, false)
			vf := s.Spec(0).PCI()
			// The pool does this with a VF that is new to it.
			if warm, err := bare.OpenVF(vf.Group, vf.BDF); err != nil {
				t.Fatal(err)
			} else {
				warm.Close()
			}
			for _, how := range []string{"for the first time", "after its VMM was killed"} {
				before := resets(probe)
				vm, release := startOne(t, s, &timeline.Timeline{})
				if got := resets(probe) - before; got != c.want {
					t.Errorf("--fastiov %s, started %s: %d resets on the way, not %d", c.set, how,
						got, c.want)
				} else {
					t.Logf("--fastiov %s, started %s: %d resets on the way", c.set, how, got)
				}
				vm.Close()
				release()
			}
		}
	})
}

// A guest's memory is all there before its first instruction. It is zeroed by then, or when its VF
// is let to it; with a table it may be zeroed later. On touch, only the memory that was needed is
// there.
func TestFootprintsOnThePatchedKernel(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		setAside(t, 192)
		for _, c := range []struct {
			set       arm.Arm
			hugePages bool
		}{
			{all(fastiovd.Eager), false}, {arm.All, false}, {trusting(), false}, {all(fastiovd.TouchMap), false}, {all(fastiovd.Table), false},
			{arm.All, true},
		} {
			set := c.set
			first, master, now, whole := footprints(t, set, c.hugePages)
			deferred := set.Memory == fastiovd.PageCache && set.Barrier != arm.Coop
			for range 3 { // on a busy machine the background may be done before the guest begins
				if deferred && first.Zeroed == whole {
					first, master, now, whole = footprints(t, set, c.hugePages)
				}
			}
			switch {
			case set.Memory == fastiovd.TouchMap:
				for _, f := range []timeline.Footprint{first, master, now} {
					if f.Zeroed != f.Resident || f.Resident >= whole || f.Waited > 0 {
						t.Errorf("--fastiov %s: %+v of %d bytes", set, f, whole)
					}
				}
			case set.Barrier == arm.Coop:
				if first.Resident != whole || now.Zeroed >= whole || master.Waited > 0 {
					t.Errorf("--fastiov %s: %+v, %+v, %+v of %d bytes", set, first,
						master, now, whole)
				}
			case set.Memory == fastiovd.Table:
				if first.Resident != whole || master.Waited > 0 {
					t.Errorf("--fastiov %s: %+v, %+v of %d bytes", set, first, master, whole)
				}
			default:
				if first.Resident != whole || master.Resident != whole || master.Zeroed != whole ||
					now.Zeroed != whole {
					t.Errorf("--fastiov %s: %+v, %+v, %+v, want all of %d bytes", set, first,
						master, now, whole)
				}
				if (first.Zeroed < whole) != deferred || (master.Waited > 0) != deferred {
					t.Errorf(
						"--fastiov %s: %d bytes zeroed at the first instruction, the VF waited %v for the bus",
						set, first.Zeroed, master.Waited)
				}
			}
		}
	})
}

// footprints starts a guest and returns what of its memory is there, and zeroed, at its first
// instruction, when its VF masters the bus, and now; and how much memory it has.
func footprints(t *testing.T, set arm.Arm, hugePages bool) (
	first, master, now timeline.Footprint, whole uint64,
) {
	t.Helper()
	s, _ := subjectWith(t, set, hugePages)
	var tl timeline.Timeline
	vm, release := startOne(t, s, &tl)
	defer release()
	defer vm.Close()
	for gate, gated := vm.(sandbox.Gated).Gate(); gated && gate.Memory == nil; {
		select {
		case <-vm.Done():
			t.Fatal(vm.Err())
		case <-time.After(10 * time.Millisecond):
		}
		gate, _ = vm.(sandbox.Gated).Gate()
	}
	seen := map[timeline.Moment]timeline.Footprint{}
	for _, f := range tl.Footprints() {
		seen[f.At] = f
		t.Logf("--fastiov %s, huge pages %v: %+v", set, hugePages, f)
	}
	now, err := vm.(sandbox.Weigher).Weigh(timeline.FirstAnswer)
	if err != nil {
		t.Error(err)
	}
	whole = uint64(s.Spec(0).MemoryMiB) << 20
	return seen[timeline.FirstInstruction], seen[timeline.BusMaster], now, whole
}

// setAside sets 2 MiB pages aside for a guest.
func setAside(t *testing.T, mib int) {
	const path = "/proc/sys/vm/nr_hugepages"
	if err := os.WriteFile(path, []byte(strconv.Itoa(mib/2)), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(path, []byte("0"), 0) })
}

// Once a function is warm no policy costs it anything. KVM takes no page fault of its guest. What
// the guest has touched is in KVM's and the IOMMU's page tables, in pages as large as if all had
// been there from the start. The IOMMU's are counted by the pages of its page tables: a 2 MiB
// mapping made of small pages needs one more.
func TestPageTablesOnThePatchedKernel(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		none := counter(t, "/proc/vmstat", "nr_iommu_pages")
		var eager pageTables
		for _, policy := range fastiovd.Policies {
			set := all(policy)
			s, _ := subjectWith(t, set, false)
			open := s.Open
			s.Open = func() (sandbox.Driver, func(), error) {
				d, release, err := open()
				if err != nil {
					return nil, nil, err
				}
				if parameters := &d.(*Driver).parameters; !slices.Contains(*parameters,
					"init_on_alloc=1") {
					// Each guest gets the same.
					*parameters = slices.Concat(*parameters, []string{"init_on_alloc=1"})
				}
				return d, release, nil
			}
			vm, release := startOne(t, s, &timeline.Timeline{})
			runtime := openwhisk.New(vm, wire.RuntimePort, nil)
			status, answer, err := runtime.Init(t.Context(), []byte(sandboxtest.Init))
			if err != nil || status != 200 {
				t.Fatalf("/init: %d %s %v", status, answer, err)
			}
			run := func(call string) {
				status, answer, err := runtime.Run(t.Context(), []byte(call), time.Time{})
				if err != nil || status != 200 {
					t.Fatalf("/run: %d %s %v", status, answer, err)
				}
			}
			for range 100 {
				run(`{"value":{"name":"warm"}}`)
			}
			warm := counter(t, kvmStat(t, "pf_taken"), "")
			for range 50 {
				run(`{"value":{"name":"warm"}}`)
			}
			got := pageTables{
				Faults: counter(t, kvmStat(t, "pf_taken"), "") - warm,
				Small:  counter(t, kvmStat(t, "pages_4k"), ""),
				Huge:   counter(t, kvmStat(t, "pages_2m"), ""),
				IOMMU:  counter(t, "/proc/vmstat", "nr_iommu_pages") - none,
			}
			t.Logf("--fastiov %s: %+v, %.4f of it in 2 MiB", set, got, got.share())
			if policy == fastiovd.Eager {
				eager = got
			}
			if got.Faults > 0 || got.share() < eager.share()-0.005 || got.IOMMU > eager.IOMMU {
				t.Errorf("--fastiov %s: %+v, %.4f of it in 2 MiB; eager has %+v, %.4f", set, got,
					got.share(), eager, eager.share())
			}
			vm.Close()
			release()
		}
	})
}

type pageTables struct {
	Faults      int // that KVM took in 50 calls
	Small, Huge int // pages in KVM's page tables
	IOMMU       int // pages of the IOMMU's
}

// share returns the part of the touched memory that KVM maps in 2 MiB.
func (p pageTables) share() float64 { return float64(512*p.Huge) / float64(512*p.Huge+p.Small) }

// kvmStat returns the path of KVM's statistic about the only VM.
func kvmStat(t *testing.T, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/sys/kernel/debug/kvm/*-*/" + name)
	if len(found) != 1 {
		t.Fatalf("statistics of %d VMs", len(found))
	}
	return found[0]
}

// counter reads a number from a file, or from the line of it that begins with a name.
func counter(t *testing.T, path, name string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 1 && name == "" || len(fields) == 2 && fields[0] == name {
			n, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return 0
}

// resets counts those of all devices: nothing else is under way.
func resets(probe *kprobe.Probe) (n uint64) {
	for _, of := range probe.Resets() {
		n += of
	}
	return n
}

func startOne(t *testing.T, s sandboxtest.Subject,
	tl *timeline.Timeline) (vm sandbox.Sandbox, release func()) {
	t.Helper()
	d, release, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	spec := s.Spec(0)
	spec.ID, spec.Dir = "one", t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	vm, err = d.Start(ctx, spec, tl, func(sandbox.Record) error { return nil })
	if err != nil {
		release()
		t.Fatal(err)
	}
	return vm, release
}
