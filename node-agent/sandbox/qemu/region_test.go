package qemu

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A root in memory is the files one after the other, as on a disk. It is read once, in steps that
// the guest's driver takes, and nobody can change it.
func TestARootInMemory(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	of := sandbox.Spec{Root: file("root", "names"), Layers: []string{file("blob", "contents")}}
	another := sandbox.Spec{Root: file("another", strings.Repeat("x", hugePage+1))}
	var images regions
	defer func() { images.last.file.Close() }()
	open := func(spec sandbox.Spec, unmapped bool, begins string, size int64) nvdimm {
		t.Helper()
		d, err := images.open(spec, unmapped)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(io.NewSectionReader(d.file, 0, d.size+1))
		if err != nil || d.size != size || int64(len(content)) != size ||
			!strings.HasPrefix(string(content), begins) {
			t.Errorf("%d bytes of %d, %v", len(content), d.size, err)
		}
		return d
	}
	first := open(of, false, "namescontents\x00", hugePage)
	defer first.file.Close()
	if _, err := first.file.WriteAt([]byte("n"), 0); err == nil {
		t.Error("it can be written")
	}
	os.Remove(of.Root)
	again := open(of, true, "namescontents\x00", hugePage)
	again.file.Close()
	open(another, false, "xxx", 2*hugePage).file.Close()
	if _, err := images.open(of, false); err == nil || !strings.Contains(err.Error(), "blob") &&
		!strings.Contains(err.Error(), "root") {
		t.Errorf("another image replaced it, and it is opened: %v", err)
	}
	seals, err := unix.FcntlInt(first.file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		t.Errorf("seals %x, %v", seals, err)
	}
	for d, option := range map[nvdimm]string{first: "", again: ",dma=off"} {
		var c command
		c.region(d)
		line := strings.Join(c.args, " ")
		if !strings.Contains(line, "readonly=on,size=2097152,mem-path=/proc/self/fd/3"+option+" ") {
			t.Errorf("QEMU is told %s", line)
		}
	}
}
