package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An invoker has died, its agent holds its socket open for the next, and its pid belongs to another
// process by now. `down` does not end that process.
func TestAStrangerWithTheNumberOfADeadInvokerIsLeftAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root chooses the number of a process")
	}
	socket := filepath.Join(t.TempDir(), invokerSocket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	inherited, err := listener.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	late := time.Now().Add(time.Minute)
	for isStranger := false; !isStranger; {
		if time.Now().After(late) {
			t.Fatal("for a minute others were first to take the number of a dead invoker")
		}
		invoker := exec.Command("/proc/self/exe")
		invoker.Env = append(os.Environ(), listensAndDies+"=1")
		invoker.ExtraFiles = []*os.File{inherited}
		if out, err := invoker.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		isStranger = startAs(t, invoker.Process.Pid)
	}
	if pid, process, err := serverOf(socket); err == nil {
		unix.Close(process)
		t.Errorf("behind the socket is %d, whose number is a stranger's by now", pid)
	}
}

// A caller that gives up waiting for a process to end is not held until its deadline.
func TestAWaitForAnEndIsGivenUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), nodeSocket)
	listener, err := net.Listen("unix", socket) // by this process, which does not end
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := signalServer(ctx, socket, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("waited until its deadline: %v", err)
	}
}

// startAs starts a process, and reports whether it got that number, which another may have taken.
func startAs(t *testing.T, pid int) bool {
	t.Helper()
	last := fmt.Appendf(nil, "%d", pid-1)
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", last, 0); err != nil {
		missing(t, "the kernel lets nobody choose the number of a process: "+err.Error())
	}
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	if cmd.Process.Pid != pid {
		end()
		return false
	}
	t.Cleanup(end)
	return true
}
