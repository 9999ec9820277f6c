package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// pythonLibrary is the standard library in Debian's packages; pythonUnused lists the parts that no
// function imports.
const pythonLibrary = "usr/lib/python3.11"

var pythonUnused = []string{"ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter",
	"turtledemo", "distutils/tests", "unittest/test"}

// compilePython compiles the standard library and the proxy with the image's own Python, as the
// packages' maintainer scripts would, but so that importing compares no times: a guest that
// imports then neither parses nor asks for the source.
func compilePython(ctx context.Context, t *rootfs.Tree, tmp string) error {
	return compileAndUsePython(ctx, t, tmp, "")
}

// compileAndUsePython compiles the tree and runs a line of Python in it, if there is one.
func compileAndUsePython(ctx context.Context, t *rootfs.Tree, tmp, use string) error {
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
	library := filepath.Join(dir, pythonLibrary)
	if err := compile(append(slices.Clone(common), library)...); err != nil {
		return err
	}
	proxy := filepath.Join(dir, "usr/lib/fastiov")
	if err := compile(append(slices.Clone(common), "-b", proxy)...); err != nil {
		return err
	}
	packages := filepath.Join(dir, pythonPackages)
	if _, err := os.Stat(packages); err == nil {
		if err := compile(append(slices.Clone(common), packages)...); err != nil {
			return err
		}
	}
	if use != "" {
		if err := runPython(ctx, dir, "-c", use, packages); err != nil {
			return err
		}
	}
	compiled := func(name string) bool { return strings.HasSuffix(name, ".pyc") }
	return t.Import(dir, "usr/lib", compiled)
}

// pythonPackages is the directory that Debian's packages put libraries into; librariesUnused lists
// the parts that no function imports. Elsewhere maintainer scripts make libraryLinks, the names by
// which BLAS and LAPACK are found.
const pythonPackages = "usr/lib/python3/dist-packages"

var (
	librariesUnused = []string{
		"numpy/distutils", "numpy/doc", "numpy/f2py", "numpy/core/include", "numpy/core/tests",
		"numpy/lib/tests", "numpy/linalg/tests", "numpy/ma/tests", "numpy/polynomial/tests",
		"numpy/random/tests", "numpy/tests", "numpy/typing/tests",
	}
	libraryLinks = map[string]string{"libblas.so.3": "blas/libblas.so.3",
		"liblapack.so.3": "lapack/liblapack.so.3"}
)

// useLibraries sees that they can be imported, and find what they are linked with.
const useLibraries = "import sys; sys.path.append(sys.argv[1]); import PIL.Image, numpy; PIL.Image.new('L', (1, 1)).resize((2, 2)); numpy.ones((2, 2)) @ numpy.ones((2, 2))"

// compilePythonLibraries compiles Python with its site packages, and uses them.
func compilePythonLibraries(ctx context.Context, t *rootfs.Tree, tmp string) error {
	for _, name := range librariesUnused {
		if err := t.Remove(pythonPackages + "/" + name); err != nil {
			return err
		}
	}
	for name, target := range libraryLinks {
		if err := t.Symlink("usr/lib/x86_64-linux-gnu/"+name, target); err != nil {
			return err
		}
	}
	return compileAndUsePython(ctx, t, tmp, useLibraries)
}

// runPython runs the Python unpacked in dir, with the dynamic linker and the libraries beside it:
// it need not be this machine's.
func runPython(ctx context.Context, dir string, args ...string) error {
	libraries := filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
	words := append([]string{"--library-path", libraries, filepath.Join(dir, "usr/bin/python3.11"),
		"-S", "-s"}, args...)
	cmd := command(ctx, filepath.Join(libraries, "ld-linux-x86-64.so.2"), words...)
	cmd.Env = []string{"PYTHONHOME=" + filepath.Join(dir, "usr"), "PYTHONHASHSEED=0",
		"PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the image's Python: %w: %s", err, lastLine(out))
	}
	return nil
}
