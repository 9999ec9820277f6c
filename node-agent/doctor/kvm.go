package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
)

// A working guest prints something within these times; a hanging guest does not. An emulated CPU
// gets more time, because a nested guest is very slow on it.
const (
	patience         = 10 * time.Second
	emulatedPatience = time.Minute
)

func patienceOf(root string) time.Duration {
	if strings.Contains(read(root, "proc/cpuinfo"), "QEMU TCG CPU") {
		return emulatedPatience
	}
	return patience
}

// kvm accepts KVM once a guest that it booted has printed its message.
func kvm(ctx context.Context, root string, kernel Kernel, qemu hypervisor.QEMU) Finding {
	const check, device = "kvm", "dev/kvm"
	const elsewhere = "use another machine, or `fastiov testbed up`, which emulates one"
	f, err := os.OpenFile(filepath.Join(root, device), os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return no(check, "enable virtualisation in the firmware and modprobe kvm_intel or kvm_amd",
			"no /%s", device)
	case errors.Is(err, os.ErrPermission):
		return no(check, "run as root, or as a member of the group kvm",
			"/%s may not be opened", device)
	case err != nil:
		return no(check, elsewhere, "/%s does not open: %v", device, err)
	}
	f.Close()
	if qemu.Program == "" {
		return no(check, hypervisor.Remedy, "there is no QEMU to try it with")
	}
	path, err := kernel(ctx)
	if err != nil {
		return no(check, "", "there is no kernel to try it with: %v", err)
	}
	took, err := probe(ctx, qemu, "kvm", path, patienceOf(root))
	if err != nil {
		return no(check, elsewhere, "/%s opens but cannot run an ordinary kernel: %v", device, err)
	}
	return ok(check, "ran a guest in %.1f s", took.Seconds())
}

// Nests reports whether this machine's KVM works and lets its guests use KVM too.
func Nests(ctx context.Context, kernel Kernel, qemu hypervisor.QEMU) bool {
	return nested("/") && kvm(ctx, "/", kernel, qemu).Verdict == OK
}

func nested(root string) bool {
	for _, vendor := range []string{"kvm_intel", "kvm_amd"} {
		if n := read(root, "sys/module", vendor, "parameters/nested"); n == "1" || n == "Y" {
			return true
		}
	}
	return false
}

// probe boots the guest and returns how long its message took.
func probe(
	ctx context.Context, qemu hypervisor.QEMU, accel, kernel string, silence time.Duration,
) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	initrd, err := probeInitrd()
	if err != nil {
		return 0, err
	}
	defer initrd.Close()
	words := qemu.Command("-machine", "q35,accel="+accel, "-cpu", "max",
		"-m", "256", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-serial", "stdio", "-kernel", kernel, "-initrd", "/proc/self/fd/3",
		"-append", "console=ttyS0 loglevel=6 panic=-1")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.ExtraFiles = []*os.File{initrd}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	console, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	last, err := listen(console, silence, cancel)
	took := time.Since(began)
	cancel()
	_ = cmd.Wait()
	switch {
	case err == nil:
		return took, nil
	case errors.Is(err, errHung):
		return 0, fmt.Errorf("a probe guest %w (last console line: %q)", err, last)
	case complaint.Len() > 0:
		return 0, fmt.Errorf("QEMU: %s", lastLine(complaint.String()))
	}
	return 0, fmt.Errorf("a probe guest %w (last console line: %q; QEMU: %v)",
		err, last, cmd.ProcessState)
}

var errHung = errors.New("hung")

// listen reads the console until the guest has printed its message, has ended, or has been silent
// for too long; then it calls stop, so that the console ends. It returns the last line that it
// read.
func listen(console io.Reader, silence time.Duration, stop func()) (string, error) {
	var hung atomic.Bool
	timer := time.AfterFunc(silence, func() { hung.Store(true); stop() })
	defer timer.Stop()
	var all strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := console.Read(buf)
		all.Write(buf[:n])
		if strings.Contains(all.String(), probeWord) {
			return probeWord, nil
		}
		if hung.Load() {
			return lastLine(all.String()), fmt.Errorf("%w: it printed nothing for %v",
				errHung, silence)
		}
		if err != nil {
			return lastLine(all.String()), fmt.Errorf("ended without a word: %w", err)
		}
		if n > 0 {
			timer.Reset(silence)
		}
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(s, "\r", "")), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
