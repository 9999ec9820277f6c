//go:build lean

package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

// lean is the guest with fastiov's own kernel, in the testbed.
var lean = image.Boot{Kernel: "/share/lean-kernel", Initrd: "/share/lean-initrd"}

// withLean runs body in a testbed that has the guests of both kernels.
func withLean(t *testing.T, body func(t *testing.T)) {
	needs := testbed.Needs{NICs: 1, Images: []string{runtimeName}}
	if !testbed.Within() {
		boot, release, err := testbed.Guest(t.Context(), image.LeanKernel)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		needs.Files = map[string]string{filepath.Base(lean.Kernel): boot.Kernel,
			filepath.Base(lean.Initrd): boot.Initrd}
	}
	testbed.Inside(t, needs, body)
}

// TestConformanceWithTheLeanGuest: with fastiov's own guest kernel all is as with Debian's.
func TestConformanceWithTheLeanGuest(t *testing.T) {
	withLean(t, func(t *testing.T) {
		s, _ := subject(t, Config{Kernel: lean.Kernel, Initrd: lean.Initrd})
		s.Run(t)
	})
}

// TestTheLeanGuestAgainstDebians starts guests without a VF, with each kernel in turn, and prints
// the medians of what they take. The exits are judged, which are the same on every machine.
func TestTheLeanGuestAgainstDebians(t *testing.T) {
	withLean(t, func(t *testing.T) {
		debians, _ := subject(t, Config{})
		leans, _ := subject(t, Config{Kernel: lean.Kernel, Initrd: lean.Initrd})
		const rounds = 5
		seen := [2]map[string][]float64{{}, {}}
		for range rounds {
			for i, s := range []sandboxtest.Subject{debians, leans} {
				for what, n := range measure(t, s) {
					seen[i][what] = append(seen[i][what], n)
				}
			}
		}
		for _, what := range []string{faults, cpu, exits, boots} {
			debian, lean := seen[0][what], seen[1][what]
			slices.Sort(debian)
			slices.Sort(lean)
			ratio := lean[rounds/2] / debian[rounds/2]
			t.Logf("%s: %.2f; lean %s, Debian's %s", what, ratio, spread(lean), spread(debian))
			if what == exits && ratio > 0.8 {
				t.Errorf("the lean guest exits to QEMU %.2f times as often as Debian's", ratio)
			}
		}
	})
}

func spread(sorted []float64) string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", sorted[len(sorted)/2], sorted[0],
		sorted[len(sorted)-1])
}

// What is measured of a start.
const (
	faults = "page faults of QEMU until the first instruction"
	cpu    = "CPU time of QEMU until the first instruction, ms"
	exits  = "exits to QEMU until the guest is ready"
	boots  = "guest-boot, ms"
)

// measure takes the steps of a start, and looks at QEMU when the guest is about to run.
func measure(t *testing.T, s sandboxtest.Subject) map[string]float64 {
	t.Helper()
	opened, release, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	d := opened.(*Driver)
	spec := s.Spec(0)
	spec.ID, spec.Dir, spec.NIC = "measured", t.TempDir(), nil
	cell, vsock, err := d.confine(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &boot{Driver: d, vm: newVM(spec, cell, door.NewSecret()), vsock: vsock,
		tl: &timeline.Timeline{}}
	v := b.vm
	got := map[string]float64{}
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	defer cancel()
	if err := v.Begin(ctx, func() (err error) {
		defer vsock.Close()
		if v.conn, err = d.guests.Expect(uint32(cell.User)); err == nil {
			err = b.launch()
		}
		v.watch()
		if err == nil {
			err = v.connect()
		}
		if err != nil {
			return err
		}
		if got[faults], got[cpu], err = spent(cell.PID()); err != nil {
			return err
		}
		count := hits(t, "kvm/kvm_userspace_exit", "reason")
		if err := v.qmp.ask("cont", nil); err != nil {
			return err
		}
		b.resumed = <-v.resumed
		if _, err := v.greet(ctx); err != nil {
			return err
		}
		if err := v.conn.Configure(configuration(spec, v.secret)); err != nil {
			return err
		}
		if err := v.conn.Ready(ctx); err != nil {
			return err
		}
		got[exits] = float64(count())
		for _, span := range v.conn.Spans() {
			if span.Stage == timeline.GuestBoot {
				got[boots] = float64(span.End.Sub(b.resumed)) / float64(time.Millisecond)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	v.Close()
	return got
}

// spent returns the page faults of a process and the CPU time of its threads.
func spent(pid int) (faults, ms float64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	if faults, err = strconv.ParseFloat(strings.Fields(fields)[7], 64); err != nil {
		return 0, 0, err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return 0, 0, err
		}
		ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		if err != nil {
			return 0, 0, err
		}
		ms += ns / 1e6
	}
	return faults, ms, nil
}
