package probe_test

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/hypervisor/probe"
	"github.com/fastiov/fastiov/testbed"
)

func qemu(t *testing.T) hypervisor.QEMU {
	t.Helper()
	q, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return q
}

// TestProbe boots the probe guest under emulation if there is a kernel to boot. That shows
// everything except KVM itself.
func TestProbe(t *testing.T) {
	kernels, _ := filepath.Glob("/boot/vmlinuz-*")
	if len(kernels) == 0 {
		t.Skip("needs a kernel in /boot")
	}
	const patience = 5 * time.Minute // an emulated boot beside other tests
	if _, err := probe.Boot(t.Context(), qemu(t), "tcg", kernels[0], patience); err != nil {
		t.Error(err)
	}
}

func TestProbeOfNoKernel(t *testing.T) {
	_, err := probe.Boot(t.Context(), qemu(t), "tcg", "/nonexistent", time.Minute)
	if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "QEMU: ") {
		t.Errorf("QEMU's complaint is not told: %v", err)
	}
}
