package build

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// QEMU returns the prefix of package hypervisor, made of Debian's packages, or where that cannot be
// made, the one that was used last.
func (b *Builder) QEMU(ctx context.Context) (dir string, err error) {
	from := hostVersions()
	make := func(ctx context.Context, dir string, say func(string, ...any)) error {
		debs, err := b.fetch(ctx, say, from, []string{"qemu-system-x86"})
		if err != nil {
			return err
		}
		return makePrefix(ctx, dir, say, debs)
	}
	return b.getOrFormer(ctx, hypervisor.Thing, []string{"qemu 1", from.inputs()}, make)
}

// makePrefix unpacks what runs of the packages into dir.
func makePrefix(ctx context.Context, dir string, say func(string, ...any), debs []deb) error {
	t, err := unpacked(ctx, dir, say, debs)
	if err != nil {
		return err
	}
	defer t.Close()
	files, err := programFiles(t, hypervisor.Program)
	if err != nil {
		return err
	}
	say("writing the program, %d libraries and the firmware", len(files)-2)
	for _, firmware := range hypervisor.Firmware {
		files = append(files, t.Glob(firmware, "*.bin")...)
	}
	for _, name := range files {
		if err := export(t, name, dir); err != nil {
			return err
		}
	}
	packages := filepath.Join(dir, "packages")
	if err := os.WriteFile(packages, []byte(manifest(debs)), 0o644); err != nil {
		return err
	}
	_, err = hypervisor.In(ctx, dir) // it runs
	return err
}

// programFiles returns a program, its loader and the libraries that it, and they, are linked with.
func programFiles(t *rootfs.Tree, program string) ([]string, error) {
	files := []string{program, hypervisor.Loader}
	for i := 0; i < len(files); i++ {
		content, err := t.Read(files[i])
		if err != nil {
			return nil, err
		}
		f, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", files[i], err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", files[i], err)
		}
		for _, name := range libraries {
			library := path.Join(hypervisor.Libraries, name)
			if name != path.Base(hypervisor.Loader) && !slices.Contains(files, library) {
				files = append(files, library)
			}
		}
	}
	return files, nil
}

// export writes a file of the tree below dir, where a link leads to a file, as that. Whatever the
// umask, VMMs may read it: each has a user of its own.
func export(t *rootfs.Tree, name, dir string) error {
	content, err := t.Read(name)
	if err != nil {
		return err
	}
	to := filepath.Join(dir, name)
	perm := fs.FileMode(0o644)
	if path.Ext(name) != ".bin" {
		perm = 0o755
	}
	if err := image.MakeDir(filepath.Dir(to)); err != nil {
		return err
	}
	if err := os.WriteFile(to, content, perm); err != nil {
		return err
	}
	return os.Chmod(to, perm)
}
