package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// guestModules are what a microVM needs beyond what Debian's kernel has built in, in the order of need: its root, the way to the host,
// its VF. erofs looks for crc32c by its algorithm, not by its module.
var guestModules = []string{"crc32c_generic", "virtio_blk", "erofs", "overlay", "vmw_vsock_virtio_transport", "igbvf"}

// Guest returns what a microVM boots from: Debian's kernel and an initrd that holds the guest agent as /init.
func (c *Cache) Guest(ctx context.Context) (Boot, error) {
	program, err := guestAgent(ctx)
	if err != nil {
		return Boot{}, err
	}
	inputs := []string{"guest 3", versions().inputs(), strings.Join(guestModules, " "), string(program)}
	dir, err := c.Get(ctx, "guest", inputs, func(ctx context.Context, dir string, say func(string, ...any)) error {
		debs, err := c.fetch(ctx, say, []string{kernelPackage})
		if err != nil {
			return err
		}
		return buildGuest(ctx, dir, say, debs, program)
	})
	return Boot{Kernel: filepath.Join(dir, kernelName), Initrd: filepath.Join(dir, initrdName)}, err
}

func buildGuest(ctx context.Context, dir string, say func(string, ...any), debs []deb, agent []byte) error {
	t, err := rootfs.New(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	say("unpacking the modules")
	release, err := unpackKernel(ctx, t, debs, func(string) bool { return true })
	if err != nil {
		return err
	}
	m, err := modulesOf(t)
	if err != nil {
		return err
	}
	list, err := m.inLoadOrder(guestModules...)
	if err != nil {
		return err
	}
	i := newInitrd(filepath.Join(dir, initrdName))
	for _, name := range []string{"dev", "proc", "sys", "run", "tmp"} {
		i.dir(name)
	}
	i.write("init", 0o755, agent)
	i.modules(list)
	if err := i.close(); err != nil {
		return err
	}
	say("unpacking the kernel of Linux %s", release)
	kernel, err := readKernel(t, release)
	if err != nil {
		return err
	}
	if kernel, err = vmlinux(kernel); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kernelName), kernel, 0o644)
}
