package qemu

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/fastiov/fastiov/node-agent/sandbox/jail/filter"
	"github.com/fastiov/fastiov/testbed"
)

// most bounds the number of system calls on an allow list.
const most = 90

// A tracer counts, in the kernel, the system calls that QEMUs of sandboxes make. One that a filter
// refuses is not counted.
type tracer struct{ counts *ebpf.Map }

func trace(t *testing.T) tracer {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: 1024})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	const (
		firstUser = 1_900_000_000
		// The name of its command begins so, and the launcher's does not.
		qemu      = 'q' | 'e'<<8 | 'm'<<16 | 'u'<<24
		comm, key = -16, -24
	)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
			asm.FnGetCurrentUidGid.Call(),
			asm.Mov.Reg32(asm.R0, asm.R0),
			asm.JLT.Imm(asm.R0, firstUser, "out"),
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, comm), asm.Mov.Imm(asm.R2, 16),
			asm.FnGetCurrentComm.Call(),
			asm.LoadMem(asm.R1, asm.RFP, comm, asm.Word),
			asm.JNE.Imm(asm.R1, qemu, "out"),
			asm.StoreMem(asm.RFP, key, asm.R6, asm.Word),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	attached, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter",
		Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { attached.Close() })
	return tracer{counts}
}

// seen is the calls that were made, in alphabetical order.
func (tr tracer) seen(t *testing.T) (names []string) {
	t.Helper()
	for call := range tr.counts.MaxEntries() {
		var n uint64
		if err := tr.counts.Lookup(call, &n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			names = append(names, filter.Name(int(call)))
		}
	}
	slices.Sort(names)
	return names
}

// hold fails the test if a call is allowed that QEMU, traced over all that its driver does with it,
// never made. One that it made and is not allowed ended it.
func (tr tracer) hold(t *testing.T) {
	t.Helper()
	vmm, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	f, err := filter.For(vmm.Path())
	if err != nil {
		t.Fatal(err)
	}
	seen := tr.seen(t)
	t.Logf("%s; %d calls seen: %v", f.Says, len(seen), seen)
	if len(f.Calls) > most {
		t.Errorf("%d calls are allowed, want %d or fewer", len(f.Calls), most)
	}
	if t.Failed() {
		return // calls that did not run were not seen
	}
	for _, call := range f.Calls {
		if !slices.Contains(seen, call) {
			t.Errorf("%s is allowed and never used", call)
		}
	}
}
