// Package kprobe observes what the kernel does to a VF for a VMM: opening it, mapping memory for
// its DMA, resetting it.
//
// Two small eBPF programs are attached to the entry and the exit of the kernel functions in
// targets. The entry program stores the time under (thread, kind); the exit program turns that into
// an event in a ring buffer. The reader gives each event to the Watch of its process. So the stages
// inside a VMM are measured where they happen, for any VMM, at no cost to processes that do not use
// VFIO.
//
// If the kernel or the module has BTF, its functions are hooked by fentry and fexit. These have no
// limit on calls in progress: two hundred VFs may be in a reset at once. Otherwise kprobe and
// kretprobe are used. They miss exits beyond max(10, 2 × CPUs) calls in progress, and a call whose
// exit is missed leaves no event.
//
// A nil *Probe observes nothing. It is for hosts without eBPF.
package kprobe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// A Kind is a kind of call.
type Kind uint32

const (
	Opening   Kind = iota + 1 // a VF was opened: by its group, or bound to an iommufd
	Mapping                   // memory was mapped for DMA
	Resetting                 // a PCI function was reset, by any method
	// a VF became a bus master after it had waited for that; only fastiov's kernel makes it wait
	mastering
)

// An Event is one finished call.
type Event struct {
	Kind  Kind
	Begin time.Time
	End   time.Time
	Bytes uint64 // of a Mapping
	BDF   string // of a Resetting: the function that was reset
}

// A Probe holds the programs in the kernel and the goroutine that reads their reports.
type Probe struct {
	closers []io.Closer
	reader  *ringbuf.Reader
	reading sync.WaitGroup

	flushing sync.Mutex
	flushed  chan struct{} // the reader has handed out all reports from before the flush

	mu      sync.Mutex
	watches map[uint32]*Watch
	resets  map[string]uint64
	mapped  uint64
	waited  map[string]time.Duration // by VF
}

// Open loads the programs into the kernel. An error says why that is impossible; the caller can do
// without a Probe.
func Open() (*Probe, error) { return open(targets) }

func open(targets []target) (*Probe, error) {
	p := &Probe{
		flushed: make(chan struct{}), watches: map[uint32]*Watch{}, resets: map[string]uint64{},
		waited: map[string]time.Duration{},
	}
	if err := p.load(targets); err != nil {
		p.release()
		return nil, fmt.Errorf("kernel probe: %w", err)
	}
	p.reading.Go(p.read)
	return p, nil
}

func (p *Probe) load(targets []target) error {
	begun, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "fastiov_begun", Type: ebpf.Hash, KeySize: 16, ValueSize: 16, MaxEntries: 16 << 10,
	})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, begun)
	events, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "fastiov_events", Type: ebpf.RingBuf, MaxEntries: 1 << 20,
	})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, events)
	missing := errors.New("no function to watch (is vfio loaded?)")
	hooked := false
	for _, t := range targets {
		err := p.hook(t, begun, events)
		switch {
		case err == nil:
			hooked = true
		case errors.Is(err, fs.ErrNotExist): // this kernel does not have the function
			missing = fmt.Errorf("%w; %w", missing, err)
		default:
			return fmt.Errorf("%s: %w", t.function, err)
		}
	}
	if !hooked {
		return missing
	}
	p.mastered(events)
	p.reader, err = ringbuf.NewReader(events)
	return err
}

// hook attaches both programs to one function, by BTF if the function has it.
func (p *Probe) hook(t target, begun, events *ebpf.Map) error {
	err := p.trace(t, begun, events)
	if err == nil {
		return nil
	}
	if probeErr := p.kprobe(t, begun, events); probeErr != nil {
		return fmt.Errorf("%w (by BTF: %v)", probeErr, err)
	}
	return nil
}

func (p *Probe) trace(t target, begun, events *ebpf.Map) error {
	var hooked []io.Closer
	for _, h := range []struct {
		at   ebpf.AttachType
		code program
	}{{ebpf.AttachTraceFEntry, entry(t, fentryArguments, begun)},
		{ebpf.AttachTraceFExit, exit(t, begun, events)}} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "fastiov", Type: ebpf.Tracing, AttachType: h.at, AttachTo: t.function,
			Instructions: h.code, License: license,
		})
		if err != nil {
			return errors.Join(err, closeAll(hooked))
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		hooked = append(hooked, prog)
		if err != nil {
			return errors.Join(err, closeAll(hooked))
		}
		hooked = append(hooked, l)
	}
	p.closers = append(p.closers, hooked...)
	return nil
}

func (p *Probe) kprobe(t target, begun, events *ebpf.Map) error {
	var hooked []io.Closer
	for _, h := range []struct {
		attach func(string, *ebpf.Program, *link.KprobeOptions) (link.Link, error)
		code   program
	}{{link.Kprobe, entry(t, kprobeArguments, begun)}, {link.Kretprobe, exit(t, begun, events)}} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "fastiov", Type: ebpf.Kprobe, Instructions: h.code, License: license,
		})
		if err != nil {
			return errors.Join(err, closeAll(hooked))
		}
		hooked = append(hooked, prog)
		l, err := h.attach(t.function, prog, nil)
		if err != nil {
			return errors.Join(err, closeAll(hooked))
		}
		hooked = append(hooked, l)
	}
	p.closers = append(p.closers, hooked...)
	return nil
}

// mastered attaches to the event of fastiov's kernel. Under a kernel without that event, no VF
// waits.
func (p *Probe) mastered(events *ebpf.Map) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "fastiov", Type: ebpf.TracePoint, Instructions: masterEvent(events), License: license,
	})
	if err != nil {
		return
	}
	p.closers = append(p.closers, prog)
	if l, err := link.Tracepoint("vfio_pci", "vfio_pci_master", prog, nil); err == nil {
		p.closers = append(p.closers, l)
	}
}

func closeAll(closers []io.Closer) (err error) {
	for i := len(closers) - 1; i >= 0; i-- {
		err = errors.Join(err, closers[i].Close())
	}
	return err
}

// Close removes the programs from the kernel.
func (p *Probe) Close() {
	if p != nil {
		p.release()
	}
}

func (p *Probe) release() {
	if p.reader != nil {
		p.reader.Close()
	}
	p.reading.Wait()
	_ = closeAll(p.closers)
}

func (p *Probe) read() {
	for {
		record, err := p.reader.Read()
		switch {
		case errors.Is(err, ringbuf.ErrFlushed):
			p.flushed <- struct{}{}
		case err != nil:
			close(p.flushed)
			return
		default:
			p.hand(record.RawSample)
		}
	}
}

// A report is an event in the exit program's format.
type report struct {
	Begin, End uint64 // CLOCK_MONOTONIC
	TGID       uint32
	Kind       Kind
	Detail     uint64
}

func (p *Probe) hand(sample []byte) {
	var r report
	if binary.Read(bytes.NewReader(sample), binary.NativeEndian, &r) != nil {
		return
	}
	now, mono := bothClocks()
	e := Event{
		Kind: r.Kind, Begin: now.Add(time.Duration(int64(r.Begin) - mono)),
		End: now.Add(time.Duration(int64(r.End) - mono)),
	}
	switch r.Kind {
	case Mapping:
		e.Bytes = r.Detail
	case Resetting:
		e.BDF = bdf(r.Detail)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case Resetting:
		p.resets[e.BDF]++
	case Mapping:
		p.mapped += e.Bytes
	case mastering:
		p.waited[string(bytes.TrimRight(sample[binary.Size(r):], "\x00"))] = e.End.Sub(e.Begin)
	}
	if w := p.watches[r.TGID]; w != nil {
		w.events = append(w.events, e)
	}
}

// bothClocks reads Go's clock and the kernel's for the same moment. If the thread loses the CPU
// between the two readings, an event would be shifted by a time slice, so the closest of several
// pairs counts.
func bothClocks() (now time.Time, mono int64) {
	const near = 20 * time.Microsecond
	for closest, try := time.Duration(math.MaxInt64), 0; try < 8 && closest > near; try++ {
		before := monotonic()
		t := time.Now()
		if apart := time.Duration(monotonic() - before); apart < closest {
			closest, now, mono = apart, t, before+int64(apart/2)
		}
	}
	return now, mono
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// Resets returns the number of resets of each PCI function since Open, whoever asked for them.
func (p *Probe) Resets() map[string]uint64 {
	counts := map[string]uint64{}
	if p == nil {
		return counts
	}
	p.flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	for bdf, n := range p.resets {
		counts[bdf] = n
	}
	return counts
}

// Mapped returns how many bytes were mapped for DMA since Open, by whatever process.
func (p *Probe) Mapped() uint64 {
	if p == nil {
		return 0
	}
	p.flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mapped
}

// Waited returns how long a VF waited to become a bus master, if it has waited since the last call.
func (p *Probe) Waited(bdf string) time.Duration {
	if p == nil {
		return 0
	}
	p.flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	waited := p.waited[bdf]
	delete(p.waited, bdf)
	return waited
}

// flush returns when all earlier reports of the kernel have been handed out.
func (p *Probe) flush() {
	p.flushing.Lock()
	defer p.flushing.Unlock()
	if p.reader.Flush() == nil {
		<-p.flushed
	}
}

// A Watch collects the events of one process.
type Watch struct {
	probe  *Probe
	pid    uint32
	events []Event
}

// Watch begins to collect the events of process pid.
func (p *Probe) Watch(pid int) *Watch {
	if p == nil {
		return nil
	}
	w := &Watch{probe: p, pid: uint32(pid)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[w.pid] = w
	return w
}

// Events returns the calls that have finished so far, in the order of their ends.
func (w *Watch) Events() []Event {
	if w == nil {
		return nil
	}
	w.probe.flush()
	w.probe.mu.Lock()
	defer w.probe.mu.Unlock()
	return append([]Event(nil), w.events...)
}

// Close stops collecting.
func (w *Watch) Close() {
	if w == nil {
		return
	}
	w.probe.mu.Lock()
	defer w.probe.mu.Unlock()
	if w.probe.watches[w.pid] == w {
		delete(w.probe.watches, w.pid)
	}
}
