package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/hypervisor/probe"
)

// kvm accepts KVM once a guest that it booted has printed its message.
func kvm(ctx context.Context, root string, kernel Kernel, qemu hypervisor.QEMU) Finding {
	const check, device = "kvm", "dev/kvm"
	const elsewhere = "use another machine, or `fastiov testbed up`, which emulates one"
	f, err := os.OpenFile(filepath.Join(root, device), os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return no(check, "enable virtualisation in the firmware and modprobe kvm_intel or kvm_amd",
			"no /%s", device)
	case errors.Is(err, os.ErrPermission):
		return no(check, "run as root, or as a member of the group kvm",
			"/%s may not be opened", device)
	case err != nil:
		return no(check, elsewhere, "/%s does not open: %v", device, err)
	}
	f.Close()
	if qemu.Program == "" {
		return no(check, hypervisor.Remedy, "there is no QEMU to try it with")
	}
	path, err := kernel(ctx)
	if err != nil {
		return no(check, "", "there is no kernel to try it with: %v", err)
	}
	took, err := probe.Boot(ctx, qemu, "kvm", path, probe.Patience(root))
	if err != nil {
		return no(check, elsewhere, "/%s opens but cannot run an ordinary kernel: %v", device, err)
	}
	return ok(check, "ran a guest in %.1f s", took.Seconds())
}
