package pull

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A second has so many of the kernel's units of CPU time.
const ticks = 100

// on has a command run on the first cpus CPUs, on all if 0.
func on(cpus int, cmd *exec.Cmd) *exec.Cmd {
	if cpus > 0 {
		taskset, err := exec.LookPath("taskset")
		if err != nil {
			cmd.Err = fmt.Errorf("%w; it keeps processes on some of the CPUs: "+
				"install the package util-linux", err)
			return cmd
		}
		cmd.Args = append([]string{taskset, "-c", fmt.Sprintf("0-%d", cpus-1), cmd.Path},
			cmd.Args[1:]...)
		cmd.Path = taskset
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// statOf returns the fields of /proc/PID/stat behind the name.
func statOf(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// cpuOf returns the CPU time of a process and of its children that have ended.
func cpuOf(pid int) (sum time.Duration) {
	stat := statOf(pid)
	if len(stat) < 15 {
		return 0
	}
	for _, field := range stat[11:15] {
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += time.Duration(n) * time.Second / ticks
	}
	return sum
}

// memoryOf returns the bytes of memory that are a process's own, or its descendants': what is not a
// file's.
func memoryOf(pid int) (sum int64) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	parent := map[int]int{}
	for _, proc := range procs {
		one, _ := strconv.Atoi(filepath.Base(proc))
		if stat := statOf(one); len(stat) > 1 {
			parent[one], _ = strconv.Atoi(stat[1])
		}
	}
	for one := range parent {
		at := one
		for at != pid && at > 0 {
			at = parent[at]
		}
		if at == pid {
			sum += anonymous(one)
		}
	}
	return sum
}

func anonymous(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10
}

// watchMemory looks at a process until stopped, and returns the most that it had.
func watchMemory(pid int) (stop func() int64) {
	done, most := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		tick := time.NewTicker(memoryEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, memoryOf(pid))
			case <-done:
				most <- peak
				return
			}
		}
	}()
	return func() int64 { close(done); return <-most }
}

const memoryEvery = 50 * time.Millisecond
