package build

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	hypervisorpatches "github.com/fastiov/fastiov/hypervisor-patches"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
)

const (
	qemuSeries = "qemu/10.0" // the patches to it
	mesonPath  = "usr/lib/python3/dist-packages"
)

// qemuTools lists the tools that build QEMU. Python makes an environment for QEMU's scripts, for
// which it needs ensurepip.
var qemuTools = []tool{
	{"gcc", "gcc"}, {"/usr/include/stdlib.h", "libc6-dev"}, {"ninja", "ninja-build"},
	{"pkg-config", "pkg-config"}, {"/usr/bin/python3", "python3"},
	{"/usr/lib/python3.*/ensurepip", "python3-venv"}, {"flex", "flex"}, {"bison", "bison"},
	{"/usr/lib/*/libglib-2.0.a", "libglib2.0-dev"},
	{"/usr/lib/*/libz.a", "zlib1g-dev"}, {"dpkg-source", "dpkg-dev"}, {"patch", "patch"},
	{"xz", "xz-utils"}, {"make", "make"}, {"ccache", "ccache"},
}

// qemuOptions hold for each QEMU that is built here: one program, with no feature but those asked
// for.
var qemuOptions = []string{"--python=/usr/bin/python3", "--cc=ccache gcc",
	"--target-list=x86_64-softmmu", "--disable-download", "--without-default-features",
	"--without-default-devices", "--with-devices-x86_64=fastiov", "--enable-system",
	"--disable-tools", "--disable-docs", "--disable-install-blobs", "--disable-debug-info",
	"--enable-trace-backends=log", "--prefix=/usr",
	"--firmwarepath=" + strings.Join(hypervisor.Firmware, ":")}

// A qemuBuild is a QEMU with fastiov's patches.
type qemuBuild struct {
	name    string
	recipe  string   // how it is made, with a number that rises when that changes
	devices string   // the file in the patches' folder that lists them
	options []string // on top of qemuOptions
	tools   []tool   // on top of qemuTools
}

// kvmQEMU has what a microVM needs: KVM alone, seccomp, and the format that makes one disk of the
// layers of an image. It is linked with no library, so it runs in the testbed's host too.
var kvmQEMU = qemuBuild{
	name: hypervisor.Patched, recipe: "patched qemu 2", devices: "devices.mak",
	options: []string{"--static", "--enable-kvm", "--disable-tcg", "--enable-vhost-kernel",
		"--enable-vhost-net", "--enable-seccomp", "--enable-vmdk"},
	tools: []tool{{"/usr/lib/*/libseccomp.a", "libseccomp-dev"}},
}

// emulatingQEMU has what a testbed needs, and emulates its processors.
var emulatingQEMU = qemuBuild{
	name: hypervisor.Emulator, recipe: "emulator 1", devices: "emulator.mak",
	options: []string{"--enable-tcg", "--enable-slirp", "--enable-virtfs", "--enable-attr"},
	tools: []tool{{"/usr/include/slirp/libslirp.h", "libslirp-dev"},
		{"/usr/include/attr/libattr.h", "libattr1-dev"}},
}

// PatchedQEMU returns a prefix with fastiov's patches to QEMU, to measure with, and Debian's
// firmware. Building it takes some ten minutes on two cores, once.
func (b *Builder) PatchedQEMU(ctx context.Context) (dir string, err error) {
	return b.buildQEMU(ctx, kvmQEMU)
}

// Emulator returns a prefix with the QEMU that boots testbeds with several emulated processors.
// Building it takes some five minutes on two cores, once.
func (b *Builder) Emulator(ctx context.Context) (dir string, err error) {
	return b.buildQEMU(ctx, emulatingQEMU)
}

// HasEmulator returns what Emulator does where that has been built.
func (b *Builder) HasEmulator(ctx context.Context) (dir string, has bool) {
	return b.Has(ctx, emulatingQEMU.name, emulatingQEMU.patched().inputs())
}

func (q qemuBuild) deviceList() []byte {
	list, err := fs.ReadFile(hypervisorpatches.Files, qemuSeries+"/"+q.devices)
	if err != nil {
		panic(err) // it is part of the binary
	}
	return list
}

func (q qemuBuild) configuration() []string { return slices.Concat(qemuOptions, q.options) }

func (q qemuBuild) patched() patched {
	return patched{
		recipe: q.recipe, source: "qemu",
		version: hostVersions().Pins["qemu"], tree: "source",
		files: hypervisorpatches.Files, series: qemuSeries,
		config: append(q.deviceList(), strings.Join(q.configuration(), "\n")...),
		tools:  slices.Concat(qemuTools, q.tools), command: "image build " + q.name,
		unpack: unpackDebianSource,
	}
}

func (b *Builder) buildQEMU(ctx context.Context, q qemuBuild) (dir string, err error) {
	debians, err := b.QEMU(ctx)
	if err != nil {
		return "", err
	}
	p := q.patched()
	p.compile = func(ctx context.Context, dir, tree string, say sayer) error {
		if err := b.compileQEMU(ctx, tree, q, say); err != nil {
			return err
		}
		if err := placeQEMU(ctx, dir, tree, debians); err != nil {
			return err
		}
		return os.RemoveAll(tree)
	}
	return b.patched(ctx, q.name, p)
}

// unpackDebianSource is for a source package of Debian, with its own patches.
func unpackDebianSource(
	ctx context.Context, b *Builder, p patched, tree string, say sayer,
) error {
	from := hostVersions()
	from.sources = true
	a, release, err := b.apt(ctx, say, from)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp(filepath.Dir(tree), "source-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	version, err := a.source(ctx, p.source, p.version)
	if err != nil {
		return err
	}
	p.unpacking(version, say)
	if err := a.bring(ctx, dir, "source", "--download-only", "--only-source",
		p.source+"="+version); err != nil {
		return err
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*.dsc"))
	if len(found) != 1 {
		return fmt.Errorf("the source of %s has %d descriptions", p.source, len(found))
	}
	cmd := command(ctx, "dpkg-source", "--extract", found[0], tree)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-source: %w: %s", err, lastLine(out))
	}
	return nil
}

// compileQEMU compiles with the build system meson as Debian's host suite has it: those of older
// releases are too old, and QEMU's source package leaves out its own.
func (b *Builder) compileQEMU(
	ctx context.Context, tree string, q qemuBuild, say sayer,
) error {
	meson := filepath.Join(tree, "meson")
	if err := b.unpackMeson(ctx, meson, say); err != nil {
		return err
	}
	list := filepath.Join(tree, "configs/devices/x86_64-softmmu/fastiov.mak")
	if err := os.WriteFile(list, q.deviceList(), 0o644); err != nil {
		return err
	}
	build := filepath.Join(tree, "build")
	if err := os.Mkdir(build, 0o755); err != nil {
		return err
	}
	steps := 0
	count := func(line string) {
		if strings.HasPrefix(line, "[") {
			if steps++; steps%100 == 0 {
				said, _, _ := strings.Cut(line[1:], "]")
				say("compiling QEMU, step %s", strings.Replace(said, "/", " of ", 1))
			}
		}
	}
	jobs := fmt.Sprintf("-j%d", runtime.NumCPU())
	for _, words := range [][]string{
		append([]string{"../configure"}, q.configuration()...), {"ninja", jobs, hypervisor.Name},
	} {
		say("running %s", filepath.Base(words[0]))
		cmd := command(ctx, words[0], words[1:]...)
		cmd.Dir = build
		cmd.Env = []string{"PYTHONPATH=" + filepath.Join(meson, mesonPath),
			"CCACHE_DIR=" + filepath.Join(b.Dir(), "ccache"), "CCACHE_BASEDIR=" + tree,
			"CCACHE_NOHASHDIR=1", "CCACHE_MAXSIZE=1G"}
		if err := runCompiler(cmd, count); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) unpackMeson(ctx context.Context, dir string, say sayer) error {
	a, release, err := b.apt(ctx, say, hostVersions())
	if err != nil {
		return err
	}
	defer release()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := a.bring(ctx, dir, "download", "meson"); err != nil {
		return err
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if len(found) != 1 {
		return fmt.Errorf("apt-get brought %d packages for meson", len(found))
	}
	out, err := command(ctx, "dpkg-deb", "--extract", found[0], dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("package meson: %w: %s", err, lastLine(out))
	}
	return nil
}

// placeQEMU makes a prefix in dir of the program that was built in tree, and of Debian's firmware.
func placeQEMU(ctx context.Context, dir, tree, debians string) error {
	program := filepath.Join(tree, "build", hypervisor.Name)
	if out, err := command(ctx, "strip", "--strip-all", program).CombinedOutput(); err != nil {
		return fmt.Errorf("strip: %w: %s", err, lastLine(out))
	}
	files := map[string]string{program: filepath.Join(dir, hypervisor.Program)}
	for _, folder := range hypervisor.Firmware {
		all, _ := filepath.Glob(filepath.Join(debians, folder, "*.bin"))
		for _, file := range all {
			files[file] = filepath.Join(dir, folder, filepath.Base(file))
		}
	}
	for from, to := range files {
		if err := image.MakeDir(filepath.Dir(to)); err != nil {
			return err
		}
		if err := image.Place(filepath.Dir(to), from); err != nil {
			return err
		}
	}
	_, err := hypervisor.In(ctx, dir) // it runs
	return err
}
