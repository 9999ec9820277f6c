package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) *Root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r, err := Open(fmt.Sprintf("fastiov-test-%d", os.Getpid()))
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(func() {
		for _, name := range r.Names() {
			t.Errorf("cgroup %s left over", name)
			killed(t, r.Group(name))
		}
		r.Remove()
	})
	return r
}

func killed(t *testing.T, g *Group) {
	t.Helper()
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
}

// missing skips a test because something is missing on this machine; in continuous integration it
// fails the test.
func missing(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("FASTIOV_CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// spawn starts a shell with a background child inside g and returns once both run.
func spawn(t *testing.T, g *Group) *exec.Cmd {
	t.Helper()
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & echo up; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd
}

func TestKillEndsTheWholeTree(t *testing.T) {
	r := open(t)
	g, err := r.Create("tree", Limits{MemoryMiB: 64, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	cmd := spawn(t, g)
	if pids := g.PIDs(); len(pids) != 2 || !slices.Contains(pids, cmd.Process.Pid) {
		t.Fatalf("pids %v, want the shell %d and its child", pids, cmd.Process.Pid)
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { killed(t, g) })
	}
	both.Wait()
	if names := r.Names(); len(names) != 0 {
		t.Errorf("cgroups left: %v", names)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("shell ended with %v, want killed", err)
	}
	killed(t, g)
}

func TestCreateRefusesASecondOwner(t *testing.T) {
	r := open(t)
	g, err := r.Create("one", Limits{MemoryMiB: 64, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer killed(t, g)
	if _, err := r.Create("one", Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v, want ErrExist", err)
	}
}

// limited holds the limit files of a cgroup of 64 MiB and 16 processes.
var limited = map[string]string{"memory.max": "67108864", "memory.swap.max": "0",
	"pids.max": "16", "cpu.weight": "25", "io.weight": "default 25"}

func TestAHostThatOffersAllLimitsAll(t *testing.T) {
	g := &Group{path: t.TempDir()}
	for file := range limited {
		if err := os.WriteFile(filepath.Join(g.path, file), []byte("max"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.limit(Limits{MemoryMiB: 64, PIDs: 16}, nil); err != nil {
		t.Fatal(err)
	}
	for file, want := range limited {
		want = strings.TrimPrefix(want, "default ") // the kernel adds that word
		if got, err := os.ReadFile(filepath.Join(g.path, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, want %s (%v)", file, got, want, err)
		}
	}
}

func TestLimitsAreSetWhereTheHostOffersThem(t *testing.T) {
	r := open(t)
	g, err := r.Create("limits", Limits{MemoryMiB: 64, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer killed(t, g)
	for file, want := range limited {
		controller, _, _ := strings.Cut(file, ".")
		got, err := os.ReadFile(g.path + "/" + file)
		switch {
		case slices.Contains(slices.Concat(r.Missing, r.Unweighted), controller):
			if err == nil {
				t.Errorf("%s is called missing but has %s", controller, file)
			}
		case file == "memory.swap.max" && errors.Is(err, fs.ErrNotExist) && !r.has(file):
			t.Log("this kernel accounts for no swap")
		case strings.TrimSpace(string(got)) != want:
			t.Errorf("%s is %q, want %s (%v)", file, got, want, err)
		}
	}
}

func (r *Root) has(file string) bool {
	_, err := os.Stat(filepath.Join(r.path, file))
	return err == nil
}

func TestWeightsAreNoConfinement(t *testing.T) {
	for name, c := range map[string]struct {
		files               []string
		missing, unweighted []string
	}{
		"all":             {needed, nil, nil},
		"no disk weights": {[]string{"cpu.weight", "memory.max", "pids.max"}, nil, []string{"io"}},
		"no memory": {[]string{"cpu.weight", "io.weight", "pids.max"},
			[]string{"memory"}, nil},
		"nothing": {nil, []string{"memory", "pids"}, []string{"cpu", "io"}},
	} {
		top := t.TempDir()
		r := &Root{path: filepath.Join(top, "fastiov")}
		if err := os.Mkdir(r.path, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range c.files {
			if err := os.WriteFile(filepath.Join(r.path, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r.look(top)
		if !slices.Equal(r.Missing, c.missing) || !slices.Equal(r.Unweighted, c.unweighted) {
			t.Errorf("%s: missing %v, unweighted %v", name, r.Missing, r.Unweighted)
		}
		if (r.Why != nil) != (len(c.missing) > 0) {
			t.Errorf("%s: %v", name, r.Why)
		}
	}
}

func TestMountOf(t *testing.T) {
	for name, c := range map[string]struct{ mountinfo, want string }{
		"unified": {"29 22 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw", "/sys/fs/cgroup"},
		"hybrid": {"30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/pids rw shared:4 - cgroup cgroup rw,pids\n" +
			"32 30 0:28 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw",
			"/sys/fs/cgroup/unified"},
		"none": {"31 30 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids", ""},
	} {
		if got := mountOf(bufio.NewScanner(strings.NewReader(c.mountinfo))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestFrozenProcessesStandStillAndDie(t *testing.T) {
	r := open(t)
	g, err := r.Create("frozen", Limits{MemoryMiB: 64, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	cmd := spawn(t, g)
	frozen := func() bool {
		text, err := os.ReadFile(g.path + "/cgroup.events")
		return err == nil && strings.Contains(string(text), "frozen 1")
	}
	for _, step := range []struct {
		do   func() error
		want bool
	}{{g.Thaw, false}, {g.Freeze, true}, {g.Freeze, true}, {g.Thaw, false}, {g.Freeze, true}} {
		if err := step.do(); err != nil || frozen() != step.want {
			t.Errorf("frozen is %t, want %t (%v)", frozen(), step.want, err)
		}
	}
	killed(t, g)
	if err := cmd.Wait(); err == nil {
		t.Error("a frozen process ended well")
	}
	if g.Freeze() == nil {
		t.Error("a cgroup that has gone was frozen")
	}
}

// A tracer holds a killed process at the beginning of its exit, like a driver that does not release
// memory. The error names that process.
func TestWhatStaysIsNamed(t *testing.T) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	r := open(t)
	r.patience = time.Millisecond
	g, err := r.Create("stays", Limits{MemoryMiB: 64, PIDs: 16})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	stopped := func() { // first at its exec, then at its exit
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			t.Fatalf("status %#x, %v", status, err)
		}
	}
	stopped()
	err = syscall.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT)
	if err = errors.Join(err, syscall.PtraceCont(pid, 0)); err != nil {
		t.Fatal(err)
	}
	err = g.Kill()
	said := fmt.Sprintf("pids [%d] are still in it", pid)
	if err == nil || !strings.Contains(err.Error(), g.path) ||
		!strings.Contains(err.Error(), said) {
		t.Errorf("%v, want %q", err, said)
	}
	if names := r.Names(); len(names) != 1 {
		t.Errorf("there are the cgroups %v", names)
	}
	stopped()
	if err := syscall.PtraceDetach(pid); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	r.patience = patience
	killed(t, r.Group("stays"))
}
