package express

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/netns"
)

// The kernel's numbers for the CPU clock of another thread, and of another process.
func threadClock(id int) int32  { return ^int32(id)<<3 | 6 }
func processClock(id int) int32 { return ^int32(id)<<3 | 2 }

func read(clock int32) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(clock, &t)
	return time.Duration(t.Nano()), os.NewSyscallError("clock_gettime", err)
}

// ksoftirqd returns the clock of the kernel's thread for softirqs that are too many.
func ksoftirqd(cpu int) (int32, error) {
	name := fmt.Sprintf("ksoftirqd/%d\n", cpu)
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range all {
		if is, err := os.ReadFile(file); err == nil && string(is) == name {
			id, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return processClock(id), err
		}
	}
	return 0, fmt.Errorf("there is no %s in this PID namespace, and its part would be missing",
		strings.TrimSpace(name))
}

// A thread is one that takes part in a load beside the one that measures.
type thread struct {
	clock int32
	ended chan error
}

// begin runs f on a thread of its own until f ends.
func begin(f func() error) *thread {
	t, clock := &thread{ended: make(chan error, 1)}, make(chan int32)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		clock <- threadClock(unix.Gettid())
		t.ended <- f()
	}()
	t.clock = <-clock
	return t
}

// softirq returns for how long a CPU has been in softirqs, as the kernel's ticks have found it.
func softirq(cpu int) (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	_, line, found := strings.Cut(string(text), fmt.Sprintf("\ncpu%d ", cpu))
	fields := strings.Fields(line)
	const at, tick = 6, 10 * time.Millisecond
	if !found || len(fields) <= at {
		return 0, fmt.Errorf("/proc/stat has no softirq of CPU %d", cpu)
	}
	n, err := strconv.ParseInt(fields[at], 10, 64)
	return time.Duration(n) * tick, err
}

// A Measure holds what a load came to.
type Measure struct {
	Messages  int     `json:"messages"`
	CPUNs     float64 `json:"cpu_ns"`     // all of it
	SoftirqNs float64 `json:"softirq_ns"` // by the kernel's ticks
	WallNs    float64 `json:"wall_ns"`
	Express   uint64  `json:"express"` // packets
	P50Ns     float64 `json:"p50_ns,omitempty"`
	P99Ns     float64 `json:"p99_ns,omitempty"`
}

// measure plays a load until it has used the CPU for long enough, where the program is.
func (h *host) measure(l load, budget time.Duration) (m Measure, err error) {
	if l.most > 0 {
		h.makeRoom()
	}
	if h.own {
		return h.play(l, budget)
	}
	err = netns.Inside(h.containers[0], func() (err error) {
		m, err = h.play(l, budget)
		return err
	})
	return m, err
}

func (h *host) play(l load, budget time.Duration) (m Measure, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	s, err := l.begin(h)
	if err != nil {
		return m, err
	}
	defer func() {
		if failed := s.end(); err == nil {
			err = failed
		}
	}()
	used := func() (sum time.Duration, err error) {
		for _, clock := range append([]int32{unix.CLOCK_THREAD_CPUTIME_ID, h.ksoftirqd},
			s.clocks...) {
			each, err := read(clock)
			if err != nil {
				return 0, err
			}
			sum += each
		}
		return sum, nil
	}
	for range l.warm {
		if err := s.step(); err != nil {
			return m, err
		}
	}
	s.messages, s.took = 0, s.took[:0]
	irq, err := softirq(h.cpu)
	if err != nil {
		return m, err
	}
	express := h.packets()
	began := time.Now()
	before, err := used()
	if err != nil {
		return m, err
	}
	for {
		if err := s.step(); err != nil {
			return m, err
		}
		now, err := used()
		if err != nil {
			return m, err
		}
		m.CPUNs = float64(now - before)
		if now-before >= budget || l.most > 0 && s.messages >= l.most {
			break
		}
	}
	m.WallNs, m.Messages = float64(time.Since(began)), s.messages
	after, err := softirq(h.cpu)
	m.SoftirqNs, m.Express = float64(after-irq), h.packets()-express
	if len(s.took) > 0 {
		q := bench.QuantilesOf(s.took)
		m.P50Ns, m.P99Ns = q.Median, q.P99
	}
	if h.express && !h.own && l.steady && m.Express*2 < uint64(m.Messages) {
		return m, fmt.Errorf("%d packets went express for %d messages: %v", m.Express, m.Messages,
			h.scon.Refused())
	}
	return m, err
}

// packets returns how many went express.
func (h *host) packets() uint64 {
	if h.scon == nil {
		return 0
	}
	return h.scon.Counts()["express"]
}
