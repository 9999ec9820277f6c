package qemu

import (
	"context"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

var onPatchedKernel = testbed.Needs{NICs: 1, Images: []string{runtimeName}, Kernel: testbed.PatchedKernel}

// subjectWith is the driver under test with the kernel switched to set.
func subjectWith(t *testing.T, set fastiovd.Set) (sandboxtest.Subject, *kprobe.Probe) {
	t.Helper()
	if err := set.Apply(); err != nil {
		t.Fatal(err)
	}
	return subject(t, set.Memory)
}

func TestConformanceOnThePatchedKernel(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		for _, policy := range []fastiovd.Policy{fastiovd.PageCache, fastiovd.TouchMap, fastiovd.Table} {
			set := fastiovd.All
			set.Memory, set.Barrier = policy, policy != fastiovd.Table
			t.Run(string(policy), func(t *testing.T) {
				s, _ := subjectWith(t, set)
				s.Run(t)
			})
		}
	})
}

// Between the begin of a start and its end a VF is reset twice, by its opening and by the VMM's machine reset; not once where the kernel
// knows that nobody touched it since its last reset. That reset happens when a VMM ends, however it does.
func TestResetsOnTheWay(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		for _, c := range []struct {
			set  fastiovd.Set
			want uint64
		}{{fastiovd.None, 2}, {fastiovd.All, 0}} {
			s, probe := subjectWith(t, c.set)
			vf := s.Spec(0).VF
			if warm, err := bare.OpenVF(vf.Group, vf.BDF); err != nil { // what the pool does with a VF that is new to it
				t.Fatal(err)
			} else {
				warm.Close()
			}
			for _, how := range []string{"for the first time", "after its VMM was killed"} {
				before := resets(probe)
				vm, release := startOne(t, s, &timeline.Timeline{})
				if got := resets(probe) - before; got != c.want {
					t.Errorf("--fastiov %s, started %s: %d resets on the way, not %d", c.set, how, got, c.want)
				} else {
					t.Logf("--fastiov %s, started %s: %d resets on the way", c.set, how, got)
				}
				vm.Close()
				release()
			}
		}
	})
}

// A guest's memory is all there before its first instruction, and zeroed by then or when its VF is let to it, other than with a table; or, on
// touch, there is only what somebody needed.
func TestFootprintsOnThePatchedKernel(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		for _, policy := range fastiovd.Policies {
			set := fastiovd.All
			set.Memory, set.Barrier = policy, policy != fastiovd.Table
			s, _ := subjectWith(t, set)
			var tl timeline.Timeline
			vm, release := startOne(t, s, &tl)
			whole := uint64(s.Spec(0).MemoryMiB) << 20
			seen := map[timeline.Moment]timeline.Footprint{}
			for _, f := range tl.Footprints() {
				seen[f.At] = f
				t.Logf("--fastiov %s: %+v", set, f)
			}
			first, master := seen[timeline.FirstInstruction], seen[timeline.BusMaster]
			now, err := vm.(sandbox.Weigher).Weigh(timeline.FirstAnswer)
			if err != nil {
				t.Error(err)
			}
			switch policy {
			case fastiovd.TouchMap:
				for _, f := range []timeline.Footprint{first, master, now} {
					if f.Zeroed != f.Resident || f.Resident >= whole || f.Waited > 0 {
						t.Errorf("--fastiov %s: %+v of %d bytes", set, f, whole)
					}
				}
			case fastiovd.Table:
				if first.Resident != whole || master.Waited > 0 {
					t.Errorf("--fastiov %s: %+v, %+v of %d bytes", set, first, master, whole)
				}
			default:
				deferred := policy == fastiovd.PageCache
				if first.Resident != whole || master.Resident != whole || master.Zeroed != whole || now.Zeroed != whole {
					t.Errorf("--fastiov %s: %+v, %+v, %+v, want all of %d bytes", set, first, master, now, whole)
				}
				if (first.Zeroed < whole) != deferred || (master.Waited > 0) != deferred {
					t.Errorf("--fastiov %s: %d bytes zeroed at the first instruction, the VF waited %v for the bus", set, first.Zeroed, master.Waited)
				}
			}
			vm.Close()
			release()
		}
	})
}

// resets counts those of all devices: nothing else is under way.
func resets(probe *kprobe.Probe) (n uint64) {
	for _, of := range probe.Resets() {
		n += of
	}
	return n
}

func startOne(t *testing.T, s sandboxtest.Subject, tl *timeline.Timeline) (vm sandbox.Sandbox, release func()) {
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
