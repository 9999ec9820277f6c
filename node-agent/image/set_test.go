package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// kernelFile returns an ELF file of one segment.
func kernelFile(content string) string {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_EXEC),
		Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64, Phoff: 64, Phentsize: 56, Phnum: 1,
		Shentsize: 64,
	})
	_ = binary.Write(&b, binary.LittleEndian, elf.Prog64{
		Type: uint32(elf.PT_NOTE), Off: 64 + 56, Filesz: uint64(len(content)),
	})
	return b.String() + content
}

// TestASetHasQEMU exports a prefix to another file system, so that it is copied, and to this one.
func TestASetHasQEMU(t *testing.T) {
	there := t.TempDir()
	guest := Boot{Kernel: filepath.Join(there, "kernel"), Initrd: filepath.Join(there, "initrd")}
	prefix := filepath.Join(there, "prefix")
	if err := os.MkdirAll(filepath.Join(prefix, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		guest.Kernel: kernelFile("a note"), guest.Initrd: "070701, the files, TRAILER!!!",
		filepath.Join(prefix, "usr/bin/program"): "program",
	} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{t.TempDir(), "/dev/shm/" + t.Name()} {
		defer os.RemoveAll(dir)
		if err := Export(dir, guest, nil, nil); err != nil {
			t.Fatal(err)
		}
		s, err := OpenSet(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.QEMU(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "no qemu in "+dir) {
			t.Errorf("a set without it: %v", err)
		}
		if err := Export(dir, guest, map[string]string{hypervisor.Thing: prefix}, nil); err != nil {
			t.Fatal(err)
		}
		got, err := s.QEMU(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.Stat(filepath.Join(got, "usr/bin/program"))
		if err != nil || program.Mode() != 0o755 {
			t.Errorf("in %s the program is %v, %v", dir, program, err)
		}
	}
}

// aSet exports a set with a prefix, and returns what it is made of.
func aSet(t *testing.T, dir string) (guest Boot, prefix string) {
	t.Helper()
	there := t.TempDir()
	guest = Boot{Kernel: filepath.Join(there, "kernel"), Initrd: filepath.Join(there, "initrd")}
	prefix = filepath.Join(there, "prefix")
	for path, content := range map[string]string{
		guest.Kernel: kernelFile("a note"), guest.Initrd: "070701, the files, TRAILER!!!",
		filepath.Join(prefix, "usr/bin/program"): "program",
	} {
		if err := MakeDir(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Export(dir, guest, map[string]string{hypervisor.Thing: prefix}, nil); err != nil {
		t.Fatal(err)
	}
	return guest, prefix
}

// VMMs, each with a user of its own, reach a set that was exported with a strict umask, linked or
// copied.
func TestASetIsReadableWhateverTheUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for _, dir := range []string{filepath.Join(t.TempDir(), "set"), "/dev/shm/" + t.Name()} {
		defer os.RemoveAll(dir)
		aSet(t, dir)
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A set that is in use can be added to. Nothing of it is changed before its user has ended.
func TestNoExportChangesASetThatIsInUse(t *testing.T) {
	dir := t.TempDir()
	guest, prefix := aSet(t, dir)
	s, err := OpenSet(dir)
	if err != nil {
		t.Fatal(err)
	}
	more := filepath.Join(prefix, "usr/bin/more")
	if err := os.WriteFile(more, []byte("more"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Export(dir, guest, map[string]string{hypervisor.Thing: prefix}, nil); err != nil {
		t.Errorf("with one file more: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "qemu/usr/bin/more")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(guest.Kernel); err != nil { // it is linked
		t.Fatal(err)
	}
	if err := os.WriteFile(guest.Kernel, []byte(kernelFile("another")), 0o644); err != nil {
		t.Fatal(err)
	}
	err = Export(dir, guest, map[string]string{hypervisor.Thing: prefix}, nil)
	if err == nil || !strings.Contains(err.Error(), "guest/kernel would change") {
		t.Errorf("with another kernel: %v", err)
	}
	s.inUse.Close()
	if err := Export(dir, guest, map[string]string{hypervisor.Thing: prefix}, nil); err != nil {
		t.Errorf("after its user has ended: %v", err)
	}
}

// Root starts no program that somebody else may have written.
func TestRootTrustsOnlyWhatIsItsOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, who must not trust others")
	}
	const nobody = 65534
	above := t.TempDir()
	dir := filepath.Join(above, "set")
	aSet(t, dir)
	s, err := OpenSet(dir)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "qemu/usr/bin/program")
	give := func(path string, uid int) func() error {
		return func() error { return os.Chown(path, uid, 0) }
	}
	open := func(path string, mode fs.FileMode) func() error {
		return func() error { return os.Chmod(path, mode) }
	}
	for what, c := range map[string]struct{ do, undo func() error }{
		"a program of another user":      {give(program, nobody), give(program, 0)},
		"a set of another user":          {give(dir, nobody), give(dir, 0)},
		"a program that others write":    {open(program, 0o757), open(program, 0o755)},
		"a directory that others change": {open(filepath.Dir(program), 0o775), open(filepath.Dir(program), 0o755)},
		"others above it":                {open(above, 0o777), open(above, 0o755)},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.QEMU(t.Context()); err == nil {
			t.Errorf("%s is trusted", what)
		}
		if err := c.undo(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.QEMU(t.Context()); err != nil {
			t.Errorf("without %s: %v", what, err)
		}
	}
}

func TestOpenSetSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenSet(dir); err == nil || !strings.Contains(err.Error(), "no set of images") {
		t.Errorf("got %v", err)
	}
	for name, content := range map[string]string{
		"guest/kernel": kernelFile("a note"), "guest/initrd": "070701, the files, TRAILER!!!",
		"runtimes/python_3/config.json": `{"command":["/p"],"env":{"A":"1"}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := tree.WriteImage(filepath.Join(dir, "runtimes/python_3/root.erofs")); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSet(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := s.Use(t.Context(), "python:3", "")
	root := filepath.Join(dir, "runtimes/python_3/root.erofs")
	if err != nil || r.Root != root || r.Command[0] != "/p" || r.Env["A"] != "1" {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, absent := range []string{"team/x:1", "nodejs:18"} {
		_, _, err := s.Use(t.Context(), absent, "")
		if err == nil || !strings.Contains(err.Error(), "which has python_3") {
			t.Errorf("%s: got %v", absent, err)
		}
	}
	if have := s.Have(); !slices.Equal(have, []string{"python:3"}) {
		t.Errorf("it has %q", have)
	}
	// Each is found before those that were cut earlier.
	for _, name := range []string{"runtimes/python_3/root.erofs", "guest/initrd", "guest/kernel"} {
		path := filepath.Join(dir, name)
		whole, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, whole.Size()-1); err != nil {
			t.Fatal(err)
		}
		s, err := OpenSet(dir)
		if err == nil {
			_, _, err = s.Use(t.Context(), "python:3", "")
		}
		if err == nil || !strings.Contains(err.Error(), path+" is damaged") {
			t.Errorf("%s cut short: got %v", name, err)
		}
	}
}

func TestAKernelSaysItsRelease(t *testing.T) {
	for content, want := range map[string]string{
		"\x7fELF Linux version %s\x00 Linux version 6.12.117-fastiov-guest (fastiov@fastiov)": "6.12.117-fastiov-guest",
		"no kernel": "",
	} {
		file := filepath.Join(t.TempDir(), KernelName)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (Boot{Kernel: file}).Release(); got != want {
			t.Errorf("%q: %q, and it is %q", content, got, want)
		}
	}
}
