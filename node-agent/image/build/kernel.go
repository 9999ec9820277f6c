package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// kernelPackage depends on Debian's newest kernel of the suite it is taken from.
const kernelPackage = "linux-image-amd64"

// kernel finds the kernel among debs.
func kernel(debs []deb) (pkg deb, release string, err error) {
	for _, d := range debs {
		if release, ok := strings.CutPrefix(d.name, "linux-image-"); ok && d.name != kernelPackage {
			return d, release, nil
		}
	}
	return deb{}, "", fmt.Errorf("%s depends on no kernel", kernelPackage)
}

// unpackKernel lays the kernel package over the tree, with the modules that keep says.
func unpackKernel(
	ctx context.Context, t *rootfs.Tree, debs []deb, keep func(name string) bool,
) (release string, err error) {
	pkg, release, err := kernel(debs)
	if err != nil {
		return "", err
	}
	return release, unpack(ctx, t, []deb{pkg}, func(name string) bool {
		return noNoise(name) && !strings.HasPrefix(name, "/boot/System.map") && keep(name)
	})
}

// readKernel is the package's kernel, a bzImage.
func readKernel(t *rootfs.Tree, release string) ([]byte, error) {
	return t.Read("boot/vmlinuz-" + release)
}

// indexModules decompresses the tree's modules, which an emulated CPU should not have to, and
// writes modprobe's index of them.
func indexModules(ctx context.Context, t *rootfs.Tree, release, tmp string) error {
	m, err := modulesOf(t)
	if err != nil {
		return err
	}
	for name, file := range m.path {
		b, err := m.read(name)
		if err != nil {
			return err
		}
		if err := t.Remove(file); err != nil {
			return err
		}
		if err := t.Write(strings.TrimSuffix(file, ".xz"), 0o644, b); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(tmp, "modules-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	where := "lib/modules/" + release
	if err := t.Export(where, dir); err != nil {
		return err
	}
	depmod, err := lookPath("depmod")
	if err != nil {
		return err
	}
	if out, err := command(ctx, depmod, "-b", dir, release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w: %s", err, lastLine(out))
	}
	return t.Import(dir, where,
		func(name string) bool { return strings.HasPrefix(filepath.Base(name), "modules.") })
}
