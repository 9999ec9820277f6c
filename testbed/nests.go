package testbed

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/hypervisor/probe"
)

// nests reports whether this machine's KVM works and lets its guests use KVM, too.
func nests(ctx context.Context, kernel string, qemu hypervisor.QEMU) bool {
	const root = "/"
	if !nested(root) {
		return false
	}
	_, err := probe.Boot(ctx, qemu, "kvm", kernel, probe.Patience(root))
	return err == nil
}

func nested(root string) bool {
	return slices.ContainsFunc([]string{"kvm_intel", "kvm_amd"}, func(module string) bool {
		value, _ := os.ReadFile(filepath.Join(root, "sys/module", module, "parameters/nested"))
		return slices.Contains([]string{"1", "Y"}, strings.TrimSpace(string(value)))
	})
}
