package build

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image"
)

// guestModules lists the modules that a microVM needs, since Debian's kernel has them not built in:
// for its root, for the way to the host, for its gate and its VF. erofs looks for crc32c by its
// algorithm, not by its module.
var guestModules = []string{"crc32c_generic", "virtio_blk", "erofs", "overlay",
	"vmw_vsock_virtio_transport", "tun", "igbvf"}

// further lists what few guests need, in archives of their own: the modules for a root that is a
// region of memory, which guests have to measure with alone, and for a NIC that is a tap.
var further = []struct {
	name    string
	modules []string
}{
	{image.RegionName, []string{"nfit", "nd_pmem"}},
	{image.TapName, []string{"virtio_net"}},
}

// A guest's base is its kernel and its modules, as files, and the files that name the modules in
// the order in which they load.
const (
	baseName  = "guest-base"
	orderName = "order"
)

// orderOf names the file with the order of a further archive.
func orderOf(archive string) string { return archive + "-" + orderName }

// Guest returns the files that a microVM boots from: Debian's kernel and an initrd that holds the
// guest agent as /init. Only the base needs packages, so another guest agent needs no mirror.
func (b *Builder) Guest(ctx context.Context) (image.Boot, error) {
	program, err := guestAgent(ctx)
	if err != nil {
		return image.Boot{}, err
	}
	inputs := []string{"guest base 1", hostVersions().inputs(), strings.Join(guestModules, " ")}
	for _, f := range further {
		inputs = append(inputs, strings.Join(f.modules, " "))
	}
	return b.guest(ctx, program, inputs, b.buildBase)
}

// guest makes the guest on the base of those inputs, or where that cannot be had, on the base that
// was used last.
func (b *Builder) guest(
	ctx context.Context, program []byte, inputs []string, makeBase builder,
) (image.Boot, error) {
	base, err := b.getOrFormer(ctx, baseName, inputs, makeBase)
	if err != nil {
		return image.Boot{}, err
	}
	return b.onBase(ctx, base, program)
}

// onBase makes the guest of a base and the guest agent.
func (b *Builder) onBase(ctx context.Context, base string, program []byte) (image.Boot, error) {
	of := []string{"guest 5", filepath.Base(base), string(program)}
	build := func(_ context.Context, dir string, _ func(string, ...any)) error {
		return buildGuest(dir, base, program)
	}
	dir, err := b.Get(ctx, guestName, of, build)
	return image.BootIn(dir), err
}

func (b *Builder) buildBase(ctx context.Context, dir string, say func(string, ...any)) error {
	debs, err := b.fetch(ctx, say, hostVersions(), []string{kernelPackage})
	if err != nil {
		return err
	}
	t, err := newBase(dir)
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
	for _, f := range further {
		all, err := m.inLoadOrder(slices.Concat(guestModules, f.modules)...)
		if err == nil {
			err = writeModules(dir, orderOf(f.name), all[len(list):])
		}
		if err != nil {
			return err
		}
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
	return errors.Join(writeModules(dir, orderName, list),
		os.WriteFile(filepath.Join(dir, image.KernelName), kernel, 0o644))
}

func writeModules(dir, order string, list []module) error {
	var names []string
	for _, m := range list {
		names = append(names, m.name)
		if err := os.WriteFile(filepath.Join(dir, m.name+".ko"), m.bytes, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, order), []byte(strings.Join(names, "\n")), 0o644)
}

func readModules(dir, order string) (list []module, err error) {
	names, err := os.ReadFile(filepath.Join(dir, order))
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
	list, err := readModules(base, orderName)
	if err != nil {
		return err
	}
	i := newInitrd(filepath.Join(dir, image.InitrdName))
	for _, name := range []string{"dev", "proc", "sys", "run", "tmp"} {
		i.dir(name)
	}
	i.write("init", 0o755, agent)
	i.modules("modules", list)
	if err := i.close(); err != nil {
		return err
	}
	for _, f := range further {
		list, err := readModules(base, orderOf(f.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		archive := newInitrd(filepath.Join(dir, f.name))
		archive.modules(f.name+"-modules", list)
		if err := archive.close(); err != nil {
			return err
		}
	}
	return image.Place(dir, filepath.Join(base, image.KernelName))
}
