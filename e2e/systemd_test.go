package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The service manager is told when the agent serves and when it ends.
func TestTheServiceManagerIsTold(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	hears, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer hears.Close()
	cmd := fastiov(t, "agent", "--sandbox", "sim", "--run-dir", filepath.Join(dir, "run"),
		"--state-dir", dir, "--metrics", "")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for _, want := range []string{"READY=1\nSTATUS=", "STOPPING=1\nSTATUS="} {
		if err := hears.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 1024)
		n, err := hears.Read(said)
		if err != nil || !strings.HasPrefix(string(said[:n]), want) {
			t.Fatalf("it is told %q, %v; want %q", said[:n], err, want)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
}
