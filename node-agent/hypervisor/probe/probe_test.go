package probe

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
)

func TestEmulatedCPUsAreGivenTime(t *testing.T) {
	emulated := t.TempDir()
	if err := os.Mkdir(filepath.Join(emulated, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(emulated, "proc/cpuinfo"),
		[]byte("model name : QEMU TCG CPU version 2.5+"), 0o600); err != nil {
		t.Fatal(err)
	}
	if Patience(emulated) <= Patience(t.TempDir()) {
		t.Error("an emulated CPU is given no more time than a real one")
	}
}

func TestListen(t *testing.T) {
	r, w := io.Pipe()
	go func() { fmt.Fprint(w, "booting\nfastiov-"); fmt.Fprint(w, "probe ok\n") }()
	if last, err := listen(r, time.Minute, func() {}); err != nil {
		t.Errorf("a guest that speaks: %q, %v", last, err)
	}
	if last, err := listen(strings.NewReader("booting\r\npanic"), time.Minute,
		func() {}); err == nil || last != "panic" || !strings.Contains(err.Error(), "ended") {
		t.Errorf("a guest that ends: %q, %v", last, err)
	}
	r, w = io.Pipe()
	go fmt.Fprint(w, "Probing EDD\n")
	if last, err := listen(r, time.Millisecond, func() { w.Close() }); err == nil ||
		!strings.Contains(err.Error(), "hung") {
		t.Errorf("a guest that hangs: %q, %v", last, err)
	}
}

// TestTheProgram reads the guest's program but does not run it: it would switch this machine off.
func TestTheProgram(t *testing.T) {
	f, err := initramfs()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	archive := cpio.NewReader(f)
	header, err := archive.Next()
	if err != nil || header.Name != "init" || header.Mode.Perm() != 0o755 {
		t.Fatalf("%+v, %v", header, err)
	}
	program, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	e, err := elf.NewFile(bytes.NewReader(program))
	if err != nil || e.Machine != elf.EM_X86_64 || e.Type != elf.ET_EXEC || len(e.Progs) != 1 ||
		e.Progs[0].Filesz != uint64(len(program)) {
		t.Fatalf("%+v, %v", e, err)
	}
	if !bytes.HasSuffix(program, []byte(message+"\n")) {
		t.Error("the message is not where the code looks for it")
	}
}
