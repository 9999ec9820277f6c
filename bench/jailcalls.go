package bench

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
)

// counted is the number of starts whose calls are counted. They are not timed.
const counted = 4

// countCalls counts the system calls in cgroups below root while starts are made, and returns the
// calls of one start.
func countCalls(root *cgroup.Root, start func(n int) error) (c JailCalls, err error) {
	id, err := root.ID()
	if err != nil {
		return c, err
	}
	calls, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1024,
	})
	if err != nil {
		return c, fmt.Errorf("counting system calls: %w", err)
	}
	defer calls.Close()
	const key = -8
	instructions := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
		asm.Mov.Imm(asm.R1, 1), // our cgroup is right below the root of the hierarchy
		asm.FnGetCurrentAncestorCgroupId.Call(),
		asm.LoadImm(asm.R1, int64(id), asm.DWord),
		asm.JNE.Reg(asm.R0, asm.R1, "out"),
		asm.StoreMem(asm.RFP, key, asm.R6, asm.Word),
		asm.LoadMapPtr(asm.R1, calls.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint, License: "GPL", Instructions: instructions,
	})
	if err != nil {
		return c, fmt.Errorf("counting system calls: %w", err)
	}
	defer program.Close()
	attached, err := link.AttachRawTracepoint(link.RawTracepointOptions{
		Name: "sys_enter", Program: program,
	})
	if err != nil {
		return c, fmt.Errorf("counting system calls: %w", err)
	}
	defer attached.Close()
	for n := range counted {
		if err := start(n); err != nil {
			return c, err
		}
	}
	for count, numbers := range map[*uint64][]uint32{
		&c.Execs: {unix.SYS_EXECVE, unix.SYS_EXECVEAT}, &c.Setns: {unix.SYS_SETNS},
		&c.Mknods: {unix.SYS_MKNOD, unix.SYS_MKNODAT},
		&c.Mounts: {unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT,
			unix.SYS_OPEN_TREE, unix.SYS_FSMOUNT,
			unix.SYS_MOUNT_SETATTR},
	} {
		for _, number := range numbers {
			var n uint64
			if err := calls.Lookup(number, &n); err != nil {
				return c, err
			}
			*count += n
		}
		*count /= counted
	}
	return c, nil
}

// wordProgram returns a static program, as small as possible: it writes a byte and ends.
func wordProgram() []byte {
	const (
		base = 0x400000
		head = 64 + 56
	)
	code := []byte{
		0xb8, unix.SYS_WRITE, 0, 0, 0, // mov eax, write
		0xbf, 1, 0, 0, 0, // mov edi, 1
		0x48, 0x8d, 0x35, 0xef, 0xff, 0xff, 0xff, // lea rsi, [code]
		0xba, 1, 0, 0, 0, // mov edx, 1
		0x0f, 0x05, // syscall
		0xb8, unix.SYS_EXIT, 0, 0, 0, // mov eax, exit
		0x31, 0xff, // xor edi, edi
		0x0f, 0x05, // syscall
	}
	size := uint64(head + len(code))
	var b bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
				byte(elf.EV_CURRENT)},
			Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1,
			Entry: base + head, Phoff: 64, Ehsize: 64,
			Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
			Filesz: size, Memsz: size, Align: 4096,
		},
		code,
	} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a write to memory cannot fail
	}
	return b.Bytes()
}
