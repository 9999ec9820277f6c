package qemu

import (
	"context"
	"errors"
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
		d, err := images.open(t.Context(), spec, unmapped)
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
	if _, err := images.open(t.Context(), of, false); err == nil ||
		!strings.Contains(err.Error(), "blob") && !strings.Contains(err.Error(), "root") {
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

// A start that is given up waits for no image that is being read, and who has another does neither.
func TestARegionThatIsBeingRead(t *testing.T) {
	dir := t.TempDir()
	slow, here := filepath.Join(dir, "slow"), filepath.Join(dir, "here")
	if err := errors.Join(unix.Mkfifo(slow, 0o600),
		os.WriteFile(here, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var images regions
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error)
	go func() {
		_, err := images.open(ctx, sandbox.Spec{Root: slow}, false)
		given <- err
	}()
	d, err := images.open(t.Context(), sandbox.Spec{Root: here}, false)
	if err != nil {
		t.Fatal(err)
	}
	d.file.Close()
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	writer, err := os.OpenFile(slow, os.O_WRONLY, 0) // the reading ends
	if err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if last, err := images.open(t.Context(), sandbox.Spec{Root: here}, false); err == nil {
		last.file.Close()
	}
}
