package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

// TestAGuestProbesLittle counts how often the guest of a start that became ready left the CPU for
// QEMU, mostly to look for devices. Unlike times, that is the same on every machine.
func TestAGuestProbesLittle(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, Images: []string{runtimeName}}, func(t *testing.T) {
		s, _ := subject(t, Config{})
		count := hits(t, "kvm/kvm_userspace_exit", "reason")
		sb, err := begin(t, s, func(*sandbox.Spec) {})
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Close()
		const most = 6000
		n := count()
		t.Logf("%d exits to QEMU", n)
		if n > most {
			t.Errorf("the guest left the CPU for QEMU %d times before it was ready; allowed: %d",
				n, most)
		}
	})
}

// hits has the kernel count an event by one of its fields from now on. The function that it returns
// says how often it came.
func hits(t *testing.T, event, field string) func() int {
	t.Helper()
	dir := filepath.Join("/sys/kernel/tracing/events", event)
	trigger := filepath.Join(dir, "trigger")
	histogram := "hist:keys=" + field
	if err := os.WriteFile(trigger, []byte(histogram), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(trigger, []byte("!"+histogram), 0) })
	return func() (n int) {
		text, err := os.ReadFile(filepath.Join(dir, "hist"))
		if err != nil {
			t.Fatal(err)
		}
		_, totals, _ := strings.Cut(string(text), "Totals:")
		if _, err := fmt.Sscanf(strings.TrimSpace(totals), "Hits: %d", &n); err != nil {
			t.Fatalf("the kernel's histogram has no total: %v: %s", err, text)
		}
		return n
	}
}
