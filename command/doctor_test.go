package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
)

// The doctor looks at the QEMU of the images that a node is to get, and makes none itself.
func TestTheDoctorKnowsASetOfImages(t *testing.T) {
	there, dir := t.TempDir(), t.TempDir()
	program, err := os.ReadFile("/bin/true") // any ELF file stands for others
	if err != nil {
		t.Fatal(err)
	}
	guest := image.BootIn(there)
	prefix := filepath.Join(there, "prefix")
	loader, qemu := prefix+hypervisor.Loader, prefix+hypervisor.Program
	for path, content := range map[string]string{
		guest.Kernel: string(program), guest.Initrd: "070701, the files, TRAILER!!!",
		qemu: string(program), loader: "#!/bin/sh\necho QEMU emulator version 10.0.99\n",
	} {
		if err := image.MakeDir(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	qemus := map[string]string{hypervisor.Thing: prefix}
	if err := image.Export(dir, guest, qemus, nil); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // no QEMU, and no apt
	cache := t.TempDir()
	t.Setenv("FASTIOV_CACHE", cache)
	cmd, out := doctorCmd(), &bytes.Buffer{}
	cmd.SetArgs([]string{"--images", dir})
	cmd.SetOut(out)
	cmd.SetErr(out)
	_ = cmd.ExecuteContext(t.Context()) // whatever else this machine lacks
	if want := "QEMU 10.0.99, " + dir; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out)
	}
	if made, err := os.ReadDir(filepath.Join(cache, "entries")); err != nil || len(made) > 0 {
		t.Errorf("it made %v, %v", made, err)
	}
	cmd.SetArgs([]string{"--images", there})
	if err := cmd.ExecuteContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no set of images") {
		t.Errorf("of a directory that is no set: %v", err)
	}
}
