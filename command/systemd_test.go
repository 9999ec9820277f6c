package command

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service manager is told when the agent serves and when it ends.
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

// The units pass flags that there are, and systemd takes them.
func TestTheUnitsAreSound(t *testing.T) {
	units, err := filepath.Glob("../packaging/*.service")
	if err != nil || len(units) != 2 {
		t.Fatal(units, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const program = "/usr/local/bin/fastiov"
	var copies []string
	dir := t.TempDir()
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		_, line, found := strings.Cut(string(text), "\nExecStart="+program+" ")
		line, _, _ = strings.Cut(line, "\n")
		cmd, words, err := rootCmd().Find(strings.Fields(line))
		if err != nil || !found {
			t.Fatalf("%s: %q: %v", unit, line, err)
		}
		words = words[:len(words)-1] // the variable with more of them
		if err := cmd.ParseFlags(words); err != nil {
			t.Errorf("%s: %v", unit, err)
		}
		copied := filepath.Join(dir, filepath.Base(unit))
		installed := strings.ReplaceAll(string(text), program, self)
		if err := os.WriteFile(copied, []byte(installed), 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, copied)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		missing(t, "systemd-analyze is not here to verify them; install the package systemd")
	}
	verify := exec.Command(analyze, append([]string{"verify", "--man=no"}, copies...)...)
	out, err := verify.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
