package oci

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// statusOf waits until the process has dropped its privileges, and returns its /proc status.
func statusOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	for late := time.Now().Add(time.Minute); time.Now().Before(late); {
		if readStatus(t, pid)["NoNewPrivs"] == "1" {
			// The kernel reads the identity before this last line: the first reading may mix both.
			return readStatus(t, pid)
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the process that unpacks was never confined")
	return nil
}

func readStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[key] = strings.Join(strings.Fields(value), " ")
	}
	return fields
}

func startIdle(t *testing.T) *unpacker {
	t.Helper()
	dir := t.TempDir()
	image, err := os.Create(filepath.Join(dir, "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	u, err := startUnpacker(context.Background(), filepath.Join(dir, "cell"), "", []*os.File{image})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		u.in.Close()
		_, _ = u.wait()
		if _, err := os.Stat(u.cell); err == nil {
			t.Error("its empty root is left over")
		}
	})
	return u
}

func TestWhoUnpacksHasNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root it runs as the same user")
	}
	u := startIdle(t)
	pid := u.cmd.Process.Pid
	fields := statusOf(t, pid)
	nobody := fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", unpackerUser)
	for key, want := range map[string]string{
		"Uid": nobody, "Gid": nobody, "Groups": "", "CapEff": "0000000000000000",
		"CapPrm": "0000000000000000", "NoNewPrivs": "1",
	} {
		if fields[key] != want {
			t.Errorf("%s: %q, want %q", key, fields[key], want)
		}
	}
	if root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", pid)); err != nil || root != u.cell {
		t.Errorf("its root is %q, %v; want %q", root, err, u.cell)
	}
	for _, ns := range []string{"net", "ipc", "uts", "pid"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		ours, _ := os.Readlink("/proc/self/ns/" + ns)
		if err != nil || theirs == ours {
			t.Errorf("its %s namespace is %s, ours %s (%v)", ns, theirs, ours, err)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	for _, want := range []string{
		fmt.Sprintf("Max data size %d %[1]d bytes", maxMemory), "Max core file size 0 0 bytes",
		fmt.Sprintf("Max file size %d %[1]d bytes", int64(maxFile)),
		fmt.Sprintf("Max open files %d %[1]d files", maxFiles),
		fmt.Sprintf("Max cpu time %d %[1]d seconds", maxSeconds),
		fmt.Sprintf("Max processes %d %[1]d processes", maxThreads),
	} {
		if err != nil ||
			!strings.Contains(strings.Join(strings.Fields(string(limits)), " "), want) {
			t.Errorf("no %q in its limits (%v)", want, err)
		}
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil || strings.TrimSpace(string(score)) != strconv.Itoa(endedFirst) {
		t.Errorf("it is ended at %q of 1000 where memory is short, want %d (%v)", score, endedFirst,
			err)
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		to, _ := os.Readlink(file)
		known := strings.HasPrefix(to, filepath.Dir(u.cell)) || // the image
			to == os.DevNull || strings.HasPrefix(to, "pipe:") ||
			strings.HasPrefix(to, "anon_inode:") ||
			strings.HasPrefix(to, "/sys/fs/cgroup/") // Go's runtime reads its limits there
		if !known {
			t.Errorf("it has %s open", to)
		}
	}
	environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if got := len(bytes.Split(bytes.Trim(environment, "\x00"),
		[]byte{0})); got != len(unpackerEnv) {
		t.Errorf("its environment is %q", environment)
	}
}

func underRaceDetector() bool {
	info, known := debug.ReadBuildInfo()
	return known && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A process that takes too much memory ends, and the error says so.
func TestABombEndsItsProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 640 MB of memory")
	}
	if underRaceDetector() {
		// The race detector's runtime is in C and crashes at the memory limit before Go can report
		// it.
		again := exec.Command("go", "test", "-count=1", "-run", "^"+t.Name()+"$", ".")
		again.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("without the race detector: %v: %s", err, out)
		}
		return
	}
	u := startIdle(t)
	statusOf(t, u.cmd.Process.Pid)
	length := binary.BigEndian.AppendUint32(nil, 1<<31) // an order without an end
	if _, err := u.in.Write(length); err != nil {
		t.Fatal(err)
	}
	piece, _ := json.Marshal(strings.Repeat("x", 1<<20))
	_, err := u.in.Write([]byte(`{"Config":"`))
	for err == nil {
		_, err = u.in.Write(piece[1 : len(piece)-1])
	}
	_, err = u.wait()
	var why because
	if b, is := err.(because); is {
		why = b
	}
	if why.Reason != TooLarge || !strings.Contains(fmt.Sprint(err), "640 MB of memory") {
		t.Errorf("it ended with %v", err)
	}
}

// Who starts it may be one to go before it, as the agent of a pod without requests is.
func TestWhoUnpacksIsNotSpared(t *testing.T) {
	const most = 1000
	file := "/proc/self/oom_score_adj"
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("without root it cannot be lowered again")
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(most)), 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(file, was, 0); err != nil {
			t.Error(err)
		}
	}()
	u := startIdle(t)
	statusOf(t, u.cmd.Process.Pid)
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", u.cmd.Process.Pid))
	if err != nil || strings.TrimSpace(string(score)) != strconv.Itoa(most) {
		t.Errorf("it is ended at %q of 1000 where memory is short, want %d (%v)", score, most, err)
	}
}

// What the kernel ends for want of memory says nothing of its image.
func TestAProcessThatIsKilled(t *testing.T) {
	u := startIdle(t)
	if err := u.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := u.wait()
	var why because
	if err == nil || errors.As(err, &why) || !errors.Is(err, errOurs) {
		t.Errorf("it ended with %v", err)
	}
}
