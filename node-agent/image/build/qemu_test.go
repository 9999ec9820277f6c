package build

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// TestAProgramBringsWhatItIsLinkedWith has this machine's shell stand for QEMU.
func TestAProgramBringsWhatItIsLinkedWith(t *testing.T) {
	libc := path.Join(hypervisor.Libraries, "libc.so.6")
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for name, from := range map[string]string{
		hypervisor.Program: "/bin/sh", hypervisor.Loader: hypervisor.Loader, libc: libc,
	} {
		content, err := os.ReadFile(from)
		need(t, err)
		if name == libc { // a link, as in packages
			if err := tree.Symlink(name, "libc-2.so"); err != nil {
				t.Fatal(err)
			}
			name = path.Join(hypervisor.Libraries, "libc-2.so")
		}
		if err := tree.Write(name, 0o600, content); err != nil {
			t.Fatal(err)
		}
	}
	files, err := programFiles(tree, hypervisor.Program)
	want := []string{hypervisor.Program, hypervisor.Loader, libc}
	if err != nil || !slices.Equal(files, want) {
		t.Fatalf("it needs %q, want %q (%v)", files, want, err)
	}
	defer unix.Umask(unix.Umask(0o077))
	dir := t.TempDir()
	for _, name := range files {
		if err := export(tree, name, dir); err != nil {
			t.Fatal(err)
		}
		file, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || file.Mode() != 0o755 {
			t.Errorf("%s has mode %v, want that of a program that all may start (%v)",
				name, file.Mode(), err)
		}
	}
	for at := filepath.Dir(libc); at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(filepath.Join(dir, at)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("not everybody may pass %s: %v, %v", at, info.Mode(), err)
		}
	}
	if err := tree.Remove(libc); err != nil {
		t.Fatal(err)
	}
	_, err = programFiles(tree, hypervisor.Program)
	if err == nil || !strings.Contains(err.Error(), "libc.so.6") {
		t.Errorf("without libc: %v", err)
	}
}

// A node whose mirror is away when the pins have changed goes on with the QEMU that it has.
func TestWithoutAMirrorAFormerQEMUServes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", t.TempDir()) // so there is no apt
	if _, err := open(t, dir).QEMU(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no former qemu") {
		t.Errorf("with an empty cache: %v", err)
	}
	made := func(context.Context, string, func(string, ...any)) error { return nil }
	former, err := open(t, dir).Get(t.Context(), hypervisor.Thing, []string{"former pins"}, made)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, dir).QEMU(t.Context()); err != nil || got != former {
		t.Errorf("%q, want %q (%v)", got, former, err)
	}
}
