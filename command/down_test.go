package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that hangs takes no connections once enough wait: `down --force` must not take it for
// dead.
func TestWhoTakesNoConnectionsIsNotTakenForDead(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, nodeSocket)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	waits, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	err = endByForce(t.Context(), dir, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Errorf("down --force: %v", err)
	}
}

// Who interrupts `down --undo` is told that nothing was undone.
func TestAnInterruptedUndoSaysSo(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, force := range []string{"--force", "--force=false"} {
		cmd := downCmd()
		cmd.SetArgs([]string{"--run-dir", t.TempDir(), "--undo", force})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(ctx)
		if err == nil || !strings.Contains(err.Error(), "`fastiov down --undo` again") {
			t.Errorf("%s: %v", force, err)
		}
	}
}

// Containers of a former agent are ended by one that has no containers, and left to one that adopts
// them.
func TestAnAgentClearsWhatItCannotAdopt(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(containersDir(dir), "driver.json")
	text := `{"Address": "/nowhere", "Namespace": "fastiov-test-nobody"}`
	if err := errors.Join(os.Mkdir(containersDir(dir), 0o700),
		os.WriteFile(note, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, chosen := range []string{"containerd", "sim"} {
		d, err := driverNamed(chosen)
		if err != nil {
			t.Fatal(err)
		}
		if err := clearDrivers(t.Context(), dir, d, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if left := isThere(note); left != (chosen == "containerd") {
			t.Errorf("--sandbox %s: left over is %v", chosen, left)
		}
	}
}
