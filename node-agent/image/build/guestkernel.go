package build

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	hypervisorpatches "github.com/fastiov/fastiov/hypervisor-patches"
	"github.com/fastiov/fastiov/node-agent/image"
)

// leanSeries is the directory of the patches to the guest's kernel and of its configuration.
const leanSeries = "guest-linux/6.12"

// LeanGuest returns the files that a microVM boots from with fastiov's own guest kernel, which has
// all built in but the drivers of VFs. Building it takes some ten minutes on two cores, once.
func (b *Builder) LeanGuest(ctx context.Context) (image.Boot, error) {
	program, err := guestAgent(ctx)
	if err != nil {
		return image.Boot{}, err
	}
	base, err := b.leanBase(ctx)
	if err != nil {
		return image.Boot{}, err
	}
	return b.onBase(ctx, base, program)
}

// leanBase returns the guest's base with fastiov's own kernel.
func (b *Builder) leanBase(ctx context.Context) (string, error) {
	config := leanConfig()
	return b.patched(ctx, "guest-kernel", patched{
		recipe: "guest kernel 1", source: kernelSource, version: versions().kernel,
		tree: kernelTree, files: hypervisorpatches.Files, series: leanSeries, config: config,
		tools: kernelTools, command: "image build " + image.GuestOf(image.LeanKernel),
		unpack: unpackKernelSource,
		compile: func(ctx context.Context, dir, tree string, say func(string, ...any)) error {
			ccache := filepath.Join(b.Dir(), "ccache")
			if err := makeKernel(ctx, tree, config, ccache, say, "vmlinux", "modules"); err != nil {
				return err
			}
			return baseOf(ctx, dir, tree)
		},
	})
}

// leanConfig joins the fragments of the configuration, by topic.
func leanConfig() (all []byte) {
	names, err := fs.Glob(hypervisorpatches.Files, leanSeries+"/config/*.config")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, name := range names {
		fragment, err := fs.ReadFile(hypervisorpatches.Files, name)
		if err != nil {
			panic(err) // it is part of the binary
		}
		all = append(all, fragment...)
	}
	return all
}

// baseOf makes of a built tree a guest's base, and removes the tree. The kernel is the ELF file
// that QEMU boots by its PVH entry, without symbols.
func baseOf(ctx context.Context, dir, tree string) error {
	file := filepath.Join(tree, "vmlinux")
	strip := command(ctx, "strip", "--strip-all", file)
	if out, err := strip.CombinedOutput(); err != nil {
		return fmt.Errorf("strip: %w: %s", err, lastLine(out))
	}
	kernel, err := os.ReadFile(file)
	if err == nil {
		err = hasPVHEntry(kernel)
	}
	if err != nil {
		return err
	}
	order, err := os.ReadFile(filepath.Join(tree, "modules.order"))
	if err != nil {
		return err
	}
	var list []module
	for _, object := range strings.Fields(string(order)) {
		path := strings.TrimSuffix(object, ".o") + ".ko"
		content, err := os.ReadFile(filepath.Join(tree, path))
		if err != nil {
			return err
		}
		name := moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))
		list = append(list, module{name, content})
	}
	if err := writeBase(dir, kernel, list); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}
