package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	kernelmod "github.com/fastiov/fastiov/kernel-mod"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// sourcePackage is Debian's source of the kernel that the patches are for, and series their directory.
const (
	sourcePackage = "linux-source-6.12"
	series        = "patches/6.12"
)

// Patched is the testbed's host with the patched kernel.
type Patched struct {
	image.Boot
	Selftests string // the directory of the kernel's selftests, programs that run on it
}

// Patched returns what the testbed's host boots from with fastiov's kernel: Debian's source with the patches, everything built in, the
// module fastiovd in the initrd, and Debian's user space. Building the kernel takes a quarter of an hour on two cores, once; the debug
// kernel, which finds its own mistakes, is another.
func (b *Builder) Patched(ctx context.Context, debug bool) (Patched, error) {
	host, err := b.Testbed(ctx)
	if err != nil {
		return Patched{}, err
	}
	build, err := b.kernelBuild(ctx, debug)
	if err != nil {
		return Patched{}, err
	}
	inputs := []string{"fastiovd 1", versions().inputs(), filepath.Base(build), string(testbedInitrd), kernelSources("fastiovd"), kernelSources("selftests")}
	dir, err := b.Get(ctx, "fastiovd", inputs, func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := install(ctx, say, kernelTools); err != nil {
			return err
		}
		debs, err := b.fetch(ctx, say, []string{"busybox-static"})
		if err != nil {
			return err
		}
		return buildModule(ctx, dir, say, debs, filepath.Join(build, "linux"))
	})
	p := Patched{Selftests: filepath.Join(dir, "selftests")}
	p.Kernel, p.Initrd, p.Root = filepath.Join(build, image.KernelName), filepath.Join(dir, image.InitrdName), host.Root
	return p, err
}

// readKernelMod reads a file of kernel-mod.
func readKernelMod(name string) []byte {
	b, err := fs.ReadFile(kernelmod.Files, name)
	if err != nil {
		panic(err) // it is part of the binary, and the series names no other
	}
	return b
}

// kernelSources is the content of a file or directory of kernel-mod.
func kernelSources(name string) string {
	var all strings.Builder
	err := fs.WalkDir(kernelmod.Files, name, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(kernelmod.Files, path)
		fmt.Fprintf(&all, "%s %d\n%s", path, len(b), b)
		return err
	})
	if err != nil {
		panic(err) // it is part of the binary
	}
	return all.String()
}

// kernelBuild returns the directory of a built kernel: the kernel itself, and in "linux" what modules for it are built with.
func (b *Builder) kernelBuild(ctx context.Context, debug bool) (string, error) {
	name, config := "kernel", readKernelMod("host.config")
	if debug {
		name, config = "debug-kernel", append(config, readKernelMod("host-debug.config")...)
	}
	inputs := []string{"kernel 1", versions().Pins["linux"], string(config), kernelSources(series)}
	return b.Get(ctx, name, inputs, func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := install(ctx, say, kernelTools); err != nil {
			return err
		}
		debs, err := b.fetch(ctx, say, []string{sourcePackage})
		if err != nil {
			return err
		}
		return buildKernel(ctx, dir, config, filepath.Join(b.Dir(), "ccache"), say, debs)
	})
}

func buildKernel(ctx context.Context, dir string, config []byte, ccache string, say func(string, ...any), debs []deb) error {
	tree := filepath.Join(dir, "linux")
	if err := unpackSource(ctx, tree, say, debs); err != nil {
		return err
	}
	if err := applyPatches(ctx, tree, say); err != nil {
		return err
	}
	fragment := filepath.Join(dir, "host.config")
	if err := os.WriteFile(fragment, config, 0o644); err != nil {
		return err
	}
	compiler := []string{"CC=ccache gcc", "CCACHE_DIR=" + ccache, "CCACHE_BASEDIR=" + tree, "CCACHE_NOHASHDIR=1", "CCACHE_MAXSIZE=1G"}
	if err := runMake(ctx, tree, nil, append(compiler, "KCONFIG_ALLCONFIG="+fragment, "allnoconfig")...); err != nil {
		return err
	}
	if err := checkConfig(filepath.Join(tree, ".config"), config); err != nil {
		return err
	}
	objects := 0
	count := func(line string) {
		if strings.HasPrefix(line, "  CC ") {
			if objects++; objects%100 == 0 {
				say("compiling the kernel, %d files of about 1700", objects)
			}
		}
	}
	say("compiling the kernel")
	if err := runMake(ctx, tree, count, append(compiler, fmt.Sprintf("-j%d", runtime.NumCPU()), "bzImage", "modules", "headers")...); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "arch/x86/boot/bzImage"), filepath.Join(dir, image.KernelName)); err != nil {
		return err
	}
	say("removing what modules are not built with")
	return prune(tree)
}

func unpackSource(ctx context.Context, tree string, say func(string, ...any), debs []deb) error {
	for _, d := range debs {
		if d.name != sourcePackage {
			continue
		}
		say("unpacking the source of Linux %s", d.version)
		if err := os.Mkdir(tree, 0o755); err != nil {
			return err
		}
		const unpack = `set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -xO "./usr/src/$2.tar.xz" | tar -xJ --strip-components=1 -C "$3"`
		out, err := exec.CommandContext(ctx, "bash", "-c", unpack, "unpack", d.file, sourcePackage, tree).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unpacking %s: %w: %s", filepath.Base(d.file), err, lastLine(out))
		}
		return nil
	}
	return fmt.Errorf("%s was not downloaded", sourcePackage)
}

// applyPatches applies the series, each patch exactly where it says.
func applyPatches(ctx context.Context, tree string, say func(string, ...any)) error {
	for name := range strings.Lines(string(readKernelMod(series + "/series"))) {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		say("applying %s", name)
		cmd := exec.CommandContext(ctx, "patch", "--strip=1", "--fuzz=0", "--batch", "--forward", "--directory", tree)
		cmd.Stdin = bytes.NewReader(readKernelMod(series + "/" + name))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not apply: %w: %s", name, err, lastLine(out))
		}
	}
	return nil
}

// checkConfig finds options that the kernel's dependencies did not let through: a kernel without one of them would fail much later.
func checkConfig(file string, asked []byte) error {
	got, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for option := range strings.Lines(string(asked)) {
		option = strings.TrimSpace(option)
		if strings.HasPrefix(option, "CONFIG_") && !bytes.Contains(got, []byte("\n"+option+"\n")) {
			return fmt.Errorf("%s did not get into the kernel's configuration; an option it depends on is missing", option)
		}
	}
	return nil
}

// runMake shows see every line that make prints; when make fails, the error names the first line that says why.
func runMake(ctx context.Context, dir string, see func(line string), args ...string) error {
	cmd := exec.CommandContext(ctx, "make", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "KBUILD_BUILD_USER=fastiov", "KBUILD_BUILD_HOST=fastiov", "KBUILD_BUILD_TIMESTAMP=1970-01-01")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its compilers end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return err
	}
	var why string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		if why == "" && (strings.Contains(line, "error:") || strings.Contains(line, "*** ")) {
			why = line
		}
		if see != nil {
			see(line)
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("make %s: %w: %s", args[len(args)-1], err, why)
	}
	return nil
}

// prune leaves of a built tree what the build of a module and of the selftests reads.
func prune(tree string) error {
	keep := []string{"include/", "usr/include/", "scripts/", "arch/x86/include/", "tools/objtool/objtool", "tools/testing/selftests/kselftest"}
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
		if top || strings.HasPrefix(base, "Makefile") || strings.HasPrefix(base, "Kconfig") || base == "Kbuild" || base == "module.lds" {
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

// buildModule makes fastiovd and the selftests with a built kernel's tree, and the initrd that loads fastiovd.
func buildModule(ctx context.Context, dir string, say func(string, ...any), debs []deb, tree string) error {
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
	if err := runMake(ctx, filepath.Join(dir, "selftests"), nil, "KSELFTEST="+filepath.Join(tree, "tools/testing/selftests"), "all"); err != nil {
		return err
	}
	fastiovd, err := os.ReadFile(filepath.Join(dir, "fastiovd/fastiovd.ko"))
	if err != nil {
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
	return writeTestbedInitrd(t, []module{{"fastiovd", fastiovd}}, filepath.Join(dir, image.InitrdName))
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
