package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api"
)

// The tests run in a process of their own, which a watcher starts. Every process that they leave
// running becomes the watcher's child, whatever its program, session or environment. The watcher
// names it and ends it, and the run fails.
const (
	watched = "FASTIOV_TEST_WATCHED"
	leaving = "FASTIOV_TEST_LEAVING" // the watcher's own test leaves a process on purpose
)

// watch runs the tests and returns their exit code, or 1 if they left a process.
func watch() int {
	runtime.LockOSThread() // the tests end with the thread that started them
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "processes that tests leave are not found:", err)
		return 1
	}
	tests := exec.Command("/proc/self/exe", os.Args[1:]...)
	tests.Args[0] = os.Args[0]
	tests.Env = append(os.Environ(), watched+"=1")
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	tests.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	told := make(chan os.Signal, 8)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ended, none := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go func() {
		defer close(none)
		for {
			var status syscall.WaitStatus
			switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
			case pid == tests.Process.Pid:
				ended <- status
			case errors.Is(err, syscall.ECHILD):
				return
			}
		}
	}()
	var status syscall.WaitStatus
	for running := true; running; {
		select {
		case s := <-told:
			_ = tests.Process.Signal(s)
		case status = <-ended:
			running = false
		}
	}
	patience := api.UndoWithin + 20*time.Second // for a process that was told to end
	if os.Getenv(leaving) != "" {
		patience = 0
	}
	if leftRunning(none, patience) || !status.Exited() {
		return 1
	}
	return status.ExitStatus()
}

// leftRunning names and ends the children that still live after patience.
func leftRunning(none <-chan struct{}, patience time.Duration) (some bool) {
	wait := time.After(patience)
	for {
		select {
		case <-none:
			return some
		case <-wait:
		}
		for pid, what := range children() {
			fmt.Fprintf(os.Stderr, "FAIL: the tests left process %d running: %s\n", pid, what)
			_ = unix.Kill(pid, unix.SIGKILL)
			some = true
		}
		wait = time.After(time.Second) // for the children of those that just ended
	}
}

// children returns the living children of this process, with their arguments and, if known, the
// test that started them.
func children() map[int]string {
	all := map[int]string{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if err != nil || len(fields) < 2 || fields[0] == "Z" ||
			fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		process := filepath.Dir(path)
		words, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		what := strings.Join(strings.Split(strings.TrimRight(string(words), "\x00"), "\x00"), " ")
		environment, _ := os.ReadFile(filepath.Join(process, "environ"))
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if test, ours := strings.CutPrefix(variable, asCommand+"="); ours {
				what += ", started by " + test
			}
		}
		if pid, err := strconv.Atoi(filepath.Base(process)); err == nil {
			all[pid] = what
		}
	}
	return all
}

// The processes are a detached command, as `up` starts one, and its child.
func TestWhatTestsLeaveRunningFailsTheRun(t *testing.T) {
	if os.Getenv(leaving) != "" {
		cmd := exec.Command("sh", "-c", "sleep 1001 & echo; wait")
		cmd.Env = []string{asCommand + "=" + t.Name(), "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // both are running now
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), self, "-test.run", "^"+t.Name()+"$")
	run.Env = append(os.Environ(), watched+"=", leaving+"=1")
	said, err := run.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "PASS") {
		t.Errorf("the run ended with %v:\n%s", err, said)
	}
	for _, want := range []string{"sh -c sleep 1001 & echo; wait, started by " +
		t.Name(), ": sleep 1001"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("it does not name %q:\n%s", want, said)
		}
	}
}
