package command

import (
	"errors"
	"io"
	"net"
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
