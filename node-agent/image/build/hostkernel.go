package build

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	kernelmod "github.com/fastiov/fastiov/kernel-mod"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// Patched is the testbed's host with the patched kernel.
type Patched struct {
	image.Boot
	Selftests string // the directory of the kernel's selftests, programs that run on it
}

// A Variant is a configuration of the patched kernel, on top of the plain one.
type Variant string

const (
	Plain Variant = ""
	Debug Variant = "debug" // finds its own mistakes
	KCSAN Variant = "kcsan" // finds data races
)

// Patched returns the files that the testbed's host boots from with fastiov's kernel: Debian's
// source with the patches, everything built in, the module fastiovd in the initrd, and Debian's
// user space. Building the kernel takes a quarter of an hour on two cores, once.
func (b *Builder) Patched(ctx context.Context, variant Variant) (Patched, error) {
	host, err := b.Testbed(ctx)
	if err != nil {
		return Patched{}, err
	}
	build, err := b.kernelBuild(ctx, variant)
	if err != nil {
		return Patched{}, err
	}
	make := func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := b.install(ctx, say, kernelTools, kernelCommand); err != nil {
			return err
		}
		debs, err := b.fetch(ctx, say, versions(), []string{"busybox-static"})
		if err != nil {
			return err
		}
		return buildModule(ctx, dir, say, debs, filepath.Join(build, kernelTree))
	}
	dir, err := b.Get(ctx, "fastiovd", moduleInputs(filepath.Base(build)), make)
	boot := image.Boot{
		Kernel: filepath.Join(build, image.KernelName),
		Initrd: filepath.Join(dir, image.InitrdName),
		Root:   host.Root,
	}
	return Patched{boot, filepath.Join(dir, "selftests")}, err
}

// moduleInputs returns what fastiovd is made from, for the kernel of that entry.
func moduleInputs(kernel string) []string {
	return []string{
		"fastiovd 2", versions().inputs(), kernel, string(testbedInitrd),
		contentOf(kernelmod.Files, "fastiovd"), contentOf(kernelmod.Files, "selftests"),
	}
}

// PatchedKey is TestbedKey of a host with fastiov's kernel.
func PatchedKey(variant Variant) string {
	_, kernel := hostKernel(variant, "")
	return image.Hash(slices.Concat(testbedInputs(), kernel.inputs(), moduleInputs("")))
}

// readKernelMod reads a file of kernel-mod.
func readKernelMod(name string) []byte {
	b, err := fs.ReadFile(kernelmod.Files, name)
	if err != nil {
		panic(err) // it is part of the binary
	}
	return b
}

const (
	// kernelSource is Debian's package of the source that the host's kernel is built from.
	kernelSource = "linux-source-6.12"
	kernelSeries = "patches/6.12" // the patches to it
	// kernelTree names the part of a kernel's entry that modules are built with.
	kernelTree = "linux"
	// kernelCommand makes the host's kernel.
	kernelCommand = "image kernel"
)

// kernelBuild returns the entry of the host's kernel: the kernel itself, and kernelTree.
func (b *Builder) kernelBuild(ctx context.Context, variant Variant) (string, error) {
	name, kernel := hostKernel(variant, filepath.Join(b.Dir(), "ccache"))
	return b.patched(ctx, name, kernel)
}

// hostKernel returns what the entry is called and how it is made.
func hostKernel(variant Variant, ccache string) (name string, p patched) {
	name, config := "kernel", readKernelMod("host.config")
	if variant != Plain {
		name = fmt.Sprintf("%s-kernel", variant)
		config = append(config, readKernelMod(fmt.Sprintf("host-%s.config", variant))...)
	}
	return name, patched{
		recipe: "kernel 1", source: kernelSource, version: versions().kernel, tree: kernelTree,
		files: kernelmod.Files, series: kernelSeries, config: config, tools: kernelTools,
		command: kernelCommand, unpack: unpackKernelSource,
		compile: func(ctx context.Context, dir, tree string, say func(string, ...any)) error {
			return compileKernel(ctx, dir, tree, config, ccache, say)
		},
	}
}

func compileKernel(
	ctx context.Context, dir, tree string, config []byte, ccache string, say func(string, ...any),
) error {
	if err := os.WriteFile(filepath.Join(dir, "host.config"), config, 0o644); err != nil {
		return err
	}
	if err := makeKernel(ctx, tree, config, ccache, say,
		"bzImage", "modules", "headers"); err != nil {
		return err
	}
	bzImage := filepath.Join(tree, "arch/x86/boot/bzImage")
	if err := os.Rename(bzImage, filepath.Join(dir, image.KernelName)); err != nil {
		return err
	}
	say("removing what modules are not built with")
	return prune(tree)
}

// makeKernel configures the kernel in tree, on top of allnoconfig, and makes targets of it.
func makeKernel(
	ctx context.Context, tree string, config []byte, ccache string, say func(string, ...any),
	targets ...string,
) error {
	fragment := filepath.Join(tree, "fastiov.config")
	if err := os.WriteFile(fragment, config, 0o644); err != nil {
		return err
	}
	compiler := []string{"CC=ccache gcc", "CCACHE_DIR=" + ccache, "CCACHE_BASEDIR=" + tree,
		"CCACHE_NOHASHDIR=1", "CCACHE_MAXSIZE=1G"}
	configure := slices.Concat(compiler, []string{"KCONFIG_ALLCONFIG=" + fragment, "allnoconfig"})
	if err := runMake(ctx, tree, nil, configure...); err != nil {
		return err
	}
	if err := checkConfig(filepath.Join(tree, ".config"), config); err != nil {
		return err
	}
	objects := 0
	count := func(line string) {
		if strings.HasPrefix(line, "  CC ") {
			if objects++; objects%100 == 0 {
				say("compiling the kernel, %d files of 1300 to 1700", objects)
			}
		}
	}
	say("compiling the kernel")
	jobs := fmt.Sprintf("-j%d", runtime.NumCPU())
	return runMake(ctx, tree, count, slices.Concat(compiler, []string{jobs}, targets)...)
}

// checkConfig finds options that the kernel's dependencies did not let through. A kernel without
// one of them would fail much later.
func checkConfig(file string, asked []byte) error {
	got, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for option := range strings.Lines(string(asked)) {
		option = strings.TrimSpace(option)
		if strings.HasPrefix(option, "CONFIG_") && !bytes.Contains(got, []byte("\n"+option+"\n")) {
			return fmt.Errorf("%s did not get into the kernel's configuration; "+
				"an option it depends on is missing", option)
		}
	}
	return nil
}

// prune leaves of a built tree what the build of a module and of the selftests reads.
func prune(tree string) error {
	keep := []string{"include/", "usr/include/", "scripts/", "arch/x86/include/",
		"tools/objtool/objtool", "tools/testing/selftests/kselftest"}
	return filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		base := filepath.Base(name)
		top := !strings.Contains(name, "/") && !strings.HasPrefix(base, "vmlinux")
		if top || strings.HasPrefix(base, "Makefile") || strings.HasPrefix(base, "Kconfig") ||
			base == "Kbuild" || base == "module.lds" {
			return nil
		}
		for _, prefix := range keep {
			if strings.HasPrefix(name, prefix) {
				return nil
			}
		}
		return os.Remove(path)
	})
}

// buildModule makes fastiovd and the selftests with a built kernel's tree, and the initrd that
// loads fastiovd.
func buildModule(
	ctx context.Context, dir string, say func(string, ...any), debs []deb, tree string,
) error {
	for _, sub := range []string{"fastiovd", "selftests"} {
		if err := writeSources(dir, sub); err != nil {
			return err
		}
	}
	say("compiling fastiovd")
	if err := runMake(ctx, tree, nil, "M="+filepath.Join(dir, "fastiovd"), "modules"); err != nil {
		return err
	}
	say("compiling the selftests")
	kselftest := "KSELFTEST=" + filepath.Join(tree, "tools/testing/selftests")
	if err := runMake(ctx, filepath.Join(dir, "selftests"), nil, kselftest, "all"); err != nil {
		return err
	}
	fastiovd, err := os.ReadFile(filepath.Join(dir, "fastiovd/fastiovd.ko"))
	if err != nil {
		return err
	}
	// One of the selftests takes the module away and brings it back.
	if err := os.WriteFile(filepath.Join(dir, "selftests/fastiovd.ko"), fastiovd,
		0o644); err != nil {
		return err
	}
	t, err := rootfs.New(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := unpack(ctx, t, debs, noNoise); err != nil {
		return err
	}
	initrd := filepath.Join(dir, image.InitrdName)
	return writeTestbedInitrd(t, []module{{"fastiovd", fastiovd}}, initrd)
}

func writeSources(dir, sub string) error {
	return fs.WalkDir(kernelmod.Files, sub, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, path), 0o755)
		}
		b, err := fs.ReadFile(kernelmod.Files, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), b, 0o644)
	})
}
