// Package probe boots a guest that prints one line. A /dev/kvm that can be opened may still be
// unable to run an ordinary kernel, so KVM counts as working only once such a guest has printed its
// line.
package probe

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

// Patience returns how long a guest may be silent on the machine whose files are under root.
func Patience(root string) time.Duration {
	cpus, _ := os.ReadFile(filepath.Join(root, "proc/cpuinfo"))
	if bytes.Contains(cpus, []byte("QEMU TCG CPU")) {
		return emulatedPatience
	}
	return patience
}

// Boot boots the guest with that kernel and returns how long its message took. It ends a guest that
// is silent for too long.
func Boot(
	ctx context.Context, qemu hypervisor.QEMU, accel, kernel string, silence time.Duration,
) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	initrd, err := initramfs()
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
		if strings.Contains(all.String(), message) {
			return message, nil
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
