package probe_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/hypervisor/probe"
	"github.com/fastiov/fastiov/testbed"
)

// That a guest boots is shown in a testbed, where the doctor has to find that KVM works.
func TestNoKernelIsTold(t *testing.T) {
	qemu, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	_, err = probe.Boot(t.Context(), qemu, "tcg", "/nonexistent", time.Minute)
	if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "QEMU: ") {
		t.Errorf("QEMU's complaint is not told: %v", err)
	}
}
