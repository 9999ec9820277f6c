package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// guestModules are what a microVM needs beyond what Debian's kernel has built in, in the order of need: its root, the way to the host,
// its VF. erofs looks for crc32c by its algorithm, not by its module.
var guestModules = []string{"crc32c_generic", "virtio_blk", "erofs", "overlay", "vmw_vsock_virtio_transport", "igbvf"}

// A guest's base is its kernel and its modules, as files, and the file that names the modules in the
// order in which they load.
const (
	baseName  = "guest-base"
	orderName = "order"
)

// Guest returns what a microVM boots from: Debian's kernel and an initrd that holds the guest agent
// as /init. All that packages are needed for is its base, so another guest agent needs no mirror.
func (c *Cache) Guest(ctx context.Context) (Boot, error) {
	program, err := guestAgent(ctx)
	if err != nil {
		return Boot{}, err
	}
	inputs := []string{"guest base 1", versions().inputs(), strings.Join(guestModules, " ")}
	return c.guest(ctx, program, recipe{baseName, inputs, needed, c.buildBase})
}

func (c *Cache) guest(ctx context.Context, program []byte, of recipe) (Boot, error) {
	base, _, err := c.take(ctx, of)
	if ctx.Err() != nil {
		return Boot{}, err
	}
	if err != nil {
		former, found := c.formerBase(ctx)
		if !found {
			return Boot{}, fmt.Errorf("%w; there is no former kernel in the cache to go on with", err)
		}
		s := newStep(c.out, "guest")
		s.say("going on with the kernel that the cache has: %v", err)
		s.end()
		base = former
	}
	inputs := []string{"guest 4", filepath.Base(base), string(program)}
	build := func(_ context.Context, dir string, _ func(string, ...any)) error {
		return buildGuest(dir, base, program)
	}
	dir, err := c.Get(ctx, "guest", inputs, build)
	return Boot{Kernel: filepath.Join(dir, kernelName), Initrd: filepath.Join(dir, initrdName)}, err
}

// formerBase is the base used last of those that the cache has.
func (c *Cache) formerBase(ctx context.Context) (dir string, found bool) {
	entries, _ := filepath.Glob(c.entry(baseName + "-*"))
	slices.SortFunc(entries, func(a, b string) int { return lastUse(b).Compare(lastUse(a)) })
	for _, entry := range entries {
		if held, err := c.hold(ctx, filepath.Base(entry)); held && err == nil {
			return entry, true
		}
	}
	return "", false
}

func lastUse(entry string) (at time.Time) {
	if info, err := os.Stat(entry); err == nil {
		at = info.ModTime()
	}
	return at
}

func (c *Cache) buildBase(ctx context.Context, dir string, say func(string, ...any)) error {
	debs, err := c.fetch(ctx, say, []string{kernelPackage})
	if err != nil {
		return err
	}
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
	say("unpacking the kernel of Linux %s", release)
	kernel, err := readKernel(t, release)
	if err != nil {
		return err
	}
	if kernel, err = vmlinux(kernel); err != nil {
		return err
	}
	return writeBase(dir, kernel, list)
}

func writeBase(dir string, kernel []byte, list []module) error {
	var names []string
	for _, m := range list {
		names = append(names, m.name)
		if err := os.WriteFile(filepath.Join(dir, m.name+".ko"), m.bytes, 0o644); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, orderName), []byte(strings.Join(names, "\n")), 0o644),
		os.WriteFile(filepath.Join(dir, kernelName), kernel, 0o644),
	)
}

func readBase(dir string) (list []module, err error) {
	names, err := os.ReadFile(filepath.Join(dir, orderName))
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(string(names)) {
		bytes, err := os.ReadFile(filepath.Join(dir, name+".ko"))
		if err != nil {
			return nil, err
		}
		list = append(list, module{name, bytes})
	}
	return list, nil
}

func buildGuest(dir, base string, agent []byte) error {
	list, err := readBase(base)
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
	return place(dir, filepath.Join(base, kernelName))
}
