package command

import (
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
	invoker := exec.Command("/proc/self/exe")
	invoker.Env = append(os.Environ(), listensAndDies+"=1")
	invoker.ExtraFiles = []*os.File{inherited}
	if out, err := invoker.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	stranger := startAs(t, invoker.Process.Pid)
	if pid, process, err := serverOf(socket); err == nil {
		unix.Close(process)
		t.Errorf("behind the socket is %d, the stranger's number is %d", pid, stranger)
	}
}

// startAs starts a process of that number, which others take, too.
func startAs(t *testing.T, pid int) int {
	t.Helper()
	last := fmt.Appendf(nil, "%d", pid-1)
	for late := time.Now().Add(time.Minute); time.Now().Before(late); {
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
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if cmd.Process.Pid == pid {
			return pid
		}
	}
	t.Fatal("for a minute others were first to take number ", pid)
	return 0
}
