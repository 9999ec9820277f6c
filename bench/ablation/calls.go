package ablation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// Calls counts how often the kernel does what no start should need, for whoever but the threads
// that make rooms for later starts: each function is a kprobe that perf counts on each CPU, without
// a program and without a file of tracefs.
type Calls struct {
	counters map[Count][]*os.File
}

// The functions that are called once for each exec, mount and change of a table. A kernel without
// one of them cannot do it in that way.
var functions = map[Count][]string{
	Execs:    {"begin_new_exec"},
	Mounts:   {"path_mount", "do_move_mount"},
	IPTables: {"xt_replace_table", "nfnetlink_rcv"},
}

// CountCalls begins to count. An error says why this kernel counts nothing.
func CountCalls() (*Calls, error) {
	kind, err := os.ReadFile("/sys/bus/event_source/devices/kprobe/type")
	if err != nil {
		return nil, fmt.Errorf("this kernel counts no calls of its functions: %w", err)
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(kind)), 10, 32)
	if err != nil {
		return nil, err
	}
	c := &Calls{counters: map[Count][]*os.File{}}
	for count, names := range functions {
		c.counters[count] = nil
		for _, name := range names {
			files, err := probe(uint32(number), name)
			c.counters[count] = append(c.counters[count], files...)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				c.Close()
				return nil, fmt.Errorf("count calls of %s: %w", name, err)
			}
		}
	}
	return c, nil
}

// probe opens a counter of calls for each CPU.
func probe(kind uint32, function string) (files []*os.File, err error) {
	name, err := unix.BytePtrFromString(function)
	if err != nil {
		return nil, err
	}
	attr := unix.PerfEventAttr{Type: kind, Ext1: uint64(uintptr(unsafe.Pointer(name)))}
	attr.Size = uint32(unsafe.Sizeof(attr))
	onPath, err := unix.BytePtrFromString(`comm != "` + jail.Ahead + `"`)
	if err != nil {
		return nil, err
	}
	for cpu := 0; ; cpu++ {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		runtime.KeepAlive(name)
		switch {
		case err == unix.ENODEV: // this CPU is offline
		case err == unix.EINVAL && len(files) > 0: // there is no such CPU
			return files, nil
		case err != nil:
			return files, err
		default:
			files = append(files, os.NewFile(uintptr(fd), function))
			if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd),
				unix.PERF_EVENT_IOC_SET_FILTER, uintptr(unsafe.Pointer(onPath))); err != 0 {
				return files, os.NewSyscallError("filter", err)
			}
		}
	}
}

// Read returns what was counted so far.
func (c *Calls) Read() (map[Count]float64, error) {
	sums := map[Count]float64{}
	for count, files := range c.counters {
		sums[count] = 0
		for _, f := range files {
			var value [8]byte
			if _, err := f.Read(value[:]); err != nil {
				return nil, fmt.Errorf("calls of %s: %w", f.Name(), err)
			}
			sums[count] += float64(binary.NativeEndian.Uint64(value[:]))
		}
	}
	return sums, nil
}

// Close stops counting.
func (c *Calls) Close() {
	for _, files := range c.counters {
		for _, f := range files {
			f.Close()
		}
	}
}
