package kprobe

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestOnAKernelThatTraces runs in a testbed, since not every machine allows hooks in its kernel.
func TestOnAKernelThatTraces(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		defer leaks.None(t, goleak.IgnoreCurrent())
		t.Run("a call is seen with times and size", aCallIsSeenWithTimesAndSize)
		t.Run("none is lost in a crowd", noneIsLostInACrowd)
		t.Run("other processes are not seen", otherProcessesAreNotSeen)
		t.Run("the verifier takes the programs", theVerifierTakesThePrograms)
		t.Run("the functions of this kernel are found", theFunctionsOfThisKernelAreFound)
		t.Run("what is absent is said", whatIsAbsentIsSaid)
	})
}

// standIn is an ioctl that any process can make: SIOCGIFINDEX of a socket, with a size that is read
// from its argument's struct. The same programs observe it as VFIO's.
var standIn = []target{{function: "sock_ioctl", command: unix.SIOCGIFINDEX, kind: Mapping,
	detail: size, offset: 24}}

func mustOpen(t *testing.T, targets []target) *Probe {
	t.Helper()
	p, err := open(targets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func call(t *testing.T, command uint, argument *[40]byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ioctl(fd, command, argument)
}

func aCallIsSeenWithTimesAndSize(t *testing.T) {
	p := mustOpen(t, standIn)
	w := p.Watch(os.Getpid())
	defer w.Close()
	before := time.Now()
	var argument [40]byte
	copy(argument[:], "lo")
	argument[24], argument[26] = 0x34, 0x12
	call(t, unix.SIOCGIFINDEX, &argument)
	call(t, unix.SIOCGIFFLAGS, &argument) // another command, which is not observed
	after := time.Now()
	events := w.Events()
	if len(events) != 1 {
		t.Fatalf("%d events, want 1: %+v", len(events), events)
	}
	const slack = time.Millisecond // between the readings of the two clocks
	e := events[0]
	if e.Kind != Mapping || e.Bytes != 0x120034 || e.Begin.Before(before.Add(-slack)) ||
		e.End.Before(e.Begin) || e.End.After(after.Add(slack)) {
		t.Errorf("%+v, want a mapping of 0x120034 bytes between %v and %v", e, before, after)
	}
}

func noneIsLostInACrowd(t *testing.T) {
	p := mustOpen(t, standIn)
	w := p.Watch(os.Getpid())
	defer w.Close()
	const callers, each = 16, 50
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				call(t, unix.SIOCGIFINDEX, &[40]byte{0: 'l', 1: 'o'})
			}
		})
	}
	all.Wait()
	if n := len(w.Events()); n != callers*each {
		t.Errorf("%d events, want %d", n, callers*each)
	}
}

func otherProcessesAreNotSeen(t *testing.T) {
	p := mustOpen(t, standIn)
	cmd := exec.Command("/bin/cat")
	in, _ := cmd.StdinPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	w := p.Watch(cmd.Process.Pid)
	call(t, unix.SIOCGIFINDEX, &[40]byte{0: 'l', 1: 'o'})
	if events := w.Events(); len(events) != 0 {
		t.Errorf("%+v of another process", events)
	}
	w.Close()
	w.Close()
}

func theVerifierTakesThePrograms(t *testing.T) {
	begun, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Hash, KeySize: 16, ValueSize: 16, MaxEntries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Close()
	events, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.TracePoint, Instructions: masterEvent(events), License: license,
	})
	if err != nil {
		t.Fatalf("master: %+v", err)
	}
	prog.Close()
	for _, target := range targets {
		for name, code := range map[string]program{
			"entry": entry(target, kprobeArguments, begun), "exit": exit(target, begun, events),
		} {
			prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.Kprobe, Instructions: code, License: license,
			})
			if err != nil {
				t.Errorf("%s of %s: %+v", name, target.function, err)
				continue
			}
			prog.Close()
		}
	}
}

func theFunctionsOfThisKernelAreFound(t *testing.T) {
	p, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if n := p.Resets(); len(n) != 0 {
		t.Errorf("resets %v before any", n)
	}
}

func whatIsAbsentIsSaid(t *testing.T) {
	p, err := open([]target{{function: "no_such_function_in_any_kernel", kind: Opening}})
	if err == nil {
		p.Close()
		t.Fatal("opened")
	}
	if !strings.HasPrefix(err.Error(), "kernel probe: ") {
		t.Errorf("%v", err)
	}
}

func TestANilProbeSeesNothing(t *testing.T) {
	var p *Probe
	w := p.Watch(1)
	if events := w.Events(); events != nil {
		t.Errorf("%v", events)
	}
	w.Close()
	p.Close()
	if n := p.Resets(); len(n) != 0 {
		t.Errorf("%v", n)
	}
}

func TestSpans(t *testing.T) {
	at := func(ms int) time.Time {
		return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond)
	}
	for _, ram := range []uint64{512, 256} {
		spans := Spans([]Event{
			{Kind: Resetting, Begin: at(12), End: at(110)}, // during the opening
			{Kind: Opening, Begin: at(10), End: at(115)},
			{Kind: Mapping, Begin: at(120), End: at(200), Bytes: ram},
			{Kind: Mapping, Begin: at(201), End: at(209), Bytes: 256},
			{Kind: Resetting, Begin: at(210), End: at(310)}, // the machine's reset
		}, 256)
		want := fmt.Sprint([]timeline.Span{
			{Stage: timeline.VFIODev, Begin: at(10), End: at(115)},
			{Stage: timeline.DMARAM, Begin: at(120), End: at(200)},
			{Stage: timeline.DMAImage, Begin: at(201), End: at(209)},
			{Stage: timeline.VFIODev, Begin: at(210), End: at(310)},
		})
		if got := fmt.Sprint(spans); got != want {
			t.Errorf("with %d of RAM: %s, want %s", ram, got, want)
		}
	}
}

func TestBDF(t *testing.T) {
	for d, want := range map[uint64]string{
		0x1_0180: "0000:01:10.0", 0x1_02ff: "0000:02:1f.7", 0: "unknown",
	} {
		if got := bdf(d); got != want {
			t.Errorf("%#x: %s, want %s", d, got, want)
		}
	}
}
