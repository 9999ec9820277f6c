package cgroup_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(leakless{m}) }

// leakless fails tests that leave goroutines behind, except in a testbed, which has some.
type leakless struct{ *testing.M }

func (m leakless) Run() int {
	code := m.M.Run()
	if code == 0 && os.Getenv("FASTIOV_TEST_TESTBED") == "" {
		if err := leaks.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// As many sandboxes end at once as a failed burst leaves. Each has gone when its Kill returns.
func TestHundredsEndAtOnce(t *testing.T) { endAtOnce(t, 300) }

// Kill needs no inotify instance of the kernel, of which a user has only 128 on most hosts.
func TestHundredsEndWithoutInotify(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		const instances = 16
		limit := "/proc/sys/fs/inotify/max_user_instances"
		if err := os.WriteFile(limit, []byte(strconv.Itoa(instances)), 0); err != nil {
			t.Fatal(err)
		}
		for range instances { // use up all instances
			if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err == nil {
				defer unix.Close(fd)
			}
		}
		if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err == nil {
			unix.Close(fd)
			t.Fatal("there is an inotify instance left")
		}
		endAtOnce(t, 500)
	})
}

// A cgroup reports which of its limits its processes met.
func TestEventsNameTheLimit(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		r, err := cgroup.Open("fastiov-events")
		if err != nil || len(r.Missing) > 0 {
			t.Fatal(err, r.Missing)
		}
		defer r.Remove()
		g, err := r.Create("events", cgroup.Limits{MemoryMiB: 64, PIDs: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Kill()
		dir, err := g.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd := exec.Command("/bin/sh", "-c", "sleep 0 & wait") // the second process is one too many
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		if err := cmd.Run(); err == nil {
			t.Error("it has two processes")
		}
		events := g.Events()
		if !strings.Contains(events, "memory.events: low 0") ||
			!strings.Contains(events, "pids.events: max ") ||
			strings.Contains(events, "pids.events: max 0") {
			t.Errorf("%q", events)
		}
	})
}

// endAtOnce ends many cgroups of one process each.
func endAtOnce(t *testing.T, many int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r, err := cgroup.Open(fmt.Sprintf("fastiov-ends-%d", os.Getpid()))
	if err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(r.Remove)
	var groups []*cgroup.Group
	for i := range many {
		g, err := r.Create(fmt.Sprintf("many%d", i), cgroup.Limits{MemoryMiB: 64, PIDs: 16})
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
		dir, err := g.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		err = cmd.Start()
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
	}
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() {
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if names := r.Names(); len(names) != 0 {
		t.Errorf("%d of %d cgroups are left", len(names), many)
	}
}
