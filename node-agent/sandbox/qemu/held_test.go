//go:build patched

package qemu

import (
	"context"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

// A VMM whose VF is held, while the kernel zeroes the guest's memory, may answer nobody. It answers
// again before the agent would end it.
func TestTheMonitorOfAHeldVMM(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		s, _ := subjectWith(t, arm.All, false)
		d, release, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		spec := s.Spec(0)
		spec.ID, spec.Dir, spec.MemoryMiB = "one", t.TempDir(), 3<<10
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var tl timeline.Timeline
		started, err := d.Start(ctx, spec, &tl, func(sandbox.Record) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		defer started.Close()
		vm := started.(*vm)
		var longest time.Duration
		for asked, up := 0, false; !up || asked == 0; asked++ {
			began := time.Now()
			if state, err := vm.state(); err != nil || state != "running" {
				t.Fatalf("%s %v", state, err)
			}
			longest = max(longest, time.Since(began))
			up = !vm.comingUp()
		}
		gate, _ := vm.Gate()
		for gate.Memory == nil && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			gate, _ = vm.Gate()
		}
		if gate.Memory == nil {
			t.Fatal("the VF has not come up")
		}
		t.Logf("the VF waited %v for the bus; the monitor's longest answer took %v",
			gate.Memory.Waited, longest)
		if gate.Memory.Waited == 0 || longest >= answersWithin {
			t.Errorf("a VF that was held for %v, and a monitor that took %v", gate.Memory.Waited,
				longest)
		}
	})
}
