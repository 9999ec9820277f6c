package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/testbed"
)

// artefacts returns the files that a test's microVM boots from: the real kernel and initrd, and a
// root image with a stand-in for a runtime.
func artefacts(t *testing.T) map[string]string {
	t.Helper()
	boot, release, err := testbed.Guest(t.Context(), image.DebianKernel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+
		"/root/bin/runtime", "./testdata/runtime")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	if err := os.WriteFile(dir+"/root/marker", []byte("from the image"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("mkfs.erofs", "--quiet", dir+"/root.erofs", dir+"/root"))
	files := map[string]string{"kernel": boot.Kernel, "initrd": boot.Initrd,
		"root.erofs": dir + "/root.erofs"}
	for _, name := range []string{image.RegionName, image.TapName} {
		if files[name], err = boot.Further(name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd.Path, err, out)
	}
}

// A machine is a microVM of a test.
type machine struct {
	started time.Time
	console bytes.Buffer
	ended   chan struct{}
	status  error
}

// patience bounds a wait for a machine that boots or ends. On an idle one that takes seconds; an
// emulated CPU that many share has taken a hundred.
const patience = 5 * time.Minute

// start starts QEMU on files; it is ended with the test, whose failure shows its console.
func start(t *testing.T, files map[string]string, options string, args ...string) *machine {
	t.Helper()
	m := &machine{started: time.Now(), ended: make(chan struct{})}
	qemu, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	words := qemu.Command(append([]string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-M", "q35", "-smp",
		"1", "-m", "192", "-serial", "stdio",
		"-kernel", files["kernel"], "-initrd", files["initrd"], "-append",
		"console=ttyS0 quiet panic=-1 reboot=t tsc=reliable no_timer_check " + options,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + files["root.erofs"], "-device",
		"virtio-blk-pci,drive=root",
	}, args...)...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = &m.console, &m.console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.status = cmd.Wait(); close(m.ended) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-m.ended
		if t.Failed() {
			t.Logf("console:\n%s", &m.console)
		}
	})
	return m
}

// end waits for the machine's own end.
func (m *machine) end(t *testing.T) {
	t.Helper()
	select {
	case <-m.ended:
		if m.status != nil {
			t.Errorf("the VMM ended with %v", m.status)
		}
	case <-time.After(patience):
		t.Error("the machine does not power off")
	}
}

// emulate starts a machine without KVM or vsock: it calls its host over a serial port.
func emulate(
	t *testing.T, files map[string]string, options string, args ...string,
) (*machine, *guest.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control")
	_, conn := listenLocal(t, path)
	args = append(args, "-accel", "tcg", "-cpu", "max",
		"-chardev", "socket,id=control,path="+path, "-device", "virtio-serial-pci", "-device",
		"virtserialport,chardev=control")
	return start(t, files, "fastiov.control=/dev/vport1p1 "+options, args...), conn
}

// showStages logs how the start went.
func showStages(t *testing.T, m *machine, conn *guest.Conn) {
	for _, s := range conn.Spans() {
		t.Logf("%-12s %8v … %8v ± %v", s.Stage, s.Begin.Sub(m.started).Round(time.Millisecond),
			s.End.Sub(m.started).Round(time.Millisecond), s.Error)
	}
	var steps []string
	for _, s := range conn.Steps() {
		steps = append(steps, s.Name+" "+s.End.Sub(s.Begin).Round(100*time.Microsecond).String())
	}
	t.Log(strings.Join(steps, ", "))
}
