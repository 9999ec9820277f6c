package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// `down` waits no longer than it is told for an agent that hangs, and `down --force` ends that
// agent and its invoker.
func TestDownEndsAnAgentThatHangs(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	agent, process := serverOf(t, filepath.Join(a.run, nodeSocket))
	invoker, theirs := serverOf(t, filepath.Join(a.run, invokerSocket))
	// of a start that was killed before its record was written
	left := filepath.Join(a.run, "sandbox", "left-1")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(process, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0) })

	out, err := fastiov(t, "down", "--timeout", "1s", "--run-dir", a.run).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "fastiov down --force") {
		t.Fatalf("down: %v, %s", err, out)
	}
	said := must(t, "down", "--force", "--run-dir", a.run)
	if !strings.Contains(said, "1 sandboxes") || strings.Count(said, "\n") != 1 {
		t.Errorf("down --force says %q", said)
	}
	for _, process := range []int{process, theirs} {
		ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		n, err := unix.Poll(ended, 30_000)
		for err == unix.EINTR {
			n, err = unix.Poll(ended, 30_000)
		}
		if n != 1 {
			t.Errorf("a process of %d and %d is there: %v", agent, invoker, err)
		}
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s: %v", left, err)
	}
}
