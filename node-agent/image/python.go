package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// pythonLibrary is the standard library in Debian's packages; pythonUnused is what of it no function imports.
const pythonLibrary = "usr/lib/python3.11"

var pythonUnused = []string{"ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "distutils/tests", "unittest/test"}

// compilePython compiles the standard library and the proxy with the image's own Python, as the packages' maintainer scripts would, but
// so that importing compares no times: a guest that imports then neither parses nor asks for the source.
func compilePython(ctx context.Context, t *rootfs.Tree, tmp string) error {
	for _, name := range pythonUnused {
		if err := t.Remove(pythonLibrary + "/" + name); err != nil {
			return err
		}
	}
	if err := t.Symlink("usr/bin/python3", "python3.11"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(tmp, "python-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, sub := range []string{"usr", "etc"} {
		if err := t.Export(sub, dir); err != nil {
			return err
		}
	}
	compile := func(args ...string) error {
		return runPython(ctx, dir, append([]string{"-m", "compileall"}, args...)...)
	}
	common := []string{"-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", dir, "-p", "/"}
	if err := compile(append(slices.Clone(common), filepath.Join(dir, pythonLibrary))...); err != nil {
		return err
	}
	if err := compile(append(slices.Clone(common), "-b", filepath.Join(dir, "usr/lib/fastiov"))...); err != nil {
		return err
	}
	return t.Import(dir, "usr/lib", func(name string) bool { return strings.HasSuffix(name, ".pyc") })
}

// runPython runs the Python unpacked in dir, with the dynamic linker and the libraries beside it: it need not be this machine's.
func runPython(ctx context.Context, dir string, args ...string) error {
	libraries := filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
	command := append([]string{"--library-path", libraries, filepath.Join(dir, "usr/bin/python3.11"), "-S", "-s"}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(libraries, "ld-linux-x86-64.so.2"), command...)
	cmd.Env = []string{"PYTHONHOME=" + filepath.Join(dir, "usr"), "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling the standard library: %w: %s", err, lastLine(out))
	}
	return nil
}
