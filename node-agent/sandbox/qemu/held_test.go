//go:build patched

package qemu

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

// A VMM answers while its VF is held and the kernel zeroes the guest's memory: nobody who asks it
// waits the hold out.
func TestTheMonitorOfAHeldVMM(t *testing.T) {
	testbed.Inside(t, onPatchedKernel, func(t *testing.T) {
		set := arm.All
		set.Async = false // the VF masters the bus before the guest is ready
		s, _ := subjectWith(t, set, false)
		opened, release, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		d := opened.(*Driver)
		spec := s.Spec(0)
		spec.ID, spec.Dir, spec.MemoryMiB = "one", t.TempDir(), 3<<10
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cell, vsock, err := d.confine(spec)
		if err != nil {
			t.Fatal(err)
		}
		var tl timeline.Timeline
		b := &boot{Driver: d, vm: newVM(spec, cell, door.NewSecret()), vsock: vsock, tl: &tl}
		defer b.vm.Close()
		var longest time.Duration
		ready, asked := make(chan struct{}), make(chan error)
		go func() { asked <- keepAsking(b, ready, &longest) }()
		err = b.vm.Begin(ctx, func() error {
			return b.run(ctx, func(sandbox.Record) error { return nil })
		})
		close(ready)
		if refused := <-asked; err != nil || refused != nil {
			t.Fatal(err, refused)
		}
		at := slices.IndexFunc(tl.Footprints(), func(f timeline.Footprint) bool {
			return f.At == timeline.BusMaster
		})
		if at < 0 {
			t.Fatal("the VF has not mastered the bus")
		}
		held := tl.Footprints()[at].Waited
		t.Logf("the VF waited %v for the bus; the monitor's longest answer took %v", held, longest)
		if held == 0 || longest > held/2 || longest >= answersWithin {
			t.Errorf("a VF that was held for %v, and a monitor that took %v", held, longest)
		}
	})
}

// keepAsking asks the VMM for its state, from before the guest's first instruction until it is
// ready, and notes the longest that an answer took.
func keepAsking(b *boot, ready <-chan struct{}, longest *time.Duration) error {
	for {
		select {
		case <-ready:
			return nil
		case <-time.After(50 * time.Millisecond): // or the guest has no time of the host's one CPU
		}
		if len(b.tl.Footprints()) == 0 { // it is not connected yet
			continue
		}
		begun := time.Now()
		if err := b.vm.qmp.ask("query-status", nil); err != nil {
			return err
		}
		*longest = max(*longest, time.Since(begun))
	}
}
