package main

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4096
	// the part that x86-64 gives to a process, without the last page
	addressSpace = 1<<47 - pageSize

	retKill  = 0x80000000
	retAllow = 0x7fff0000
)

// readFilter reads the agent's instructions.
func readFilter(fd int) ([]unix.SockFilter, error) {
	raw := make([]byte, 64<<10)
	n, err := unix.Pread(fd, raw, 0)
	if err != nil {
		return nil, err
	}
	if n == 0 || n%8 != 0 {
		return nil, errors.New("it is no list of instructions")
	}
	var calls []unix.SockFilter
	for raw = raw[:n]; len(raw) > 0; raw = raw[8:] {
		calls = append(calls, unix.SockFilter{
			Code: binary.LittleEndian.Uint16(raw), Jt: raw[2], Jf: raw[3],
			K: binary.LittleEndian.Uint32(raw[4:]),
		})
	}
	return calls, nil
}

// hide puts path at a random address, which disappears with this program. A filter that allows
// execve only with this address allows it once: the VMM would have to guess 47 bits, and each wrong
// guess ends it.
func hide(path string) (unsafe.Pointer, error) {
	for {
		var random [8]byte
		if _, err := unix.Getrandom(random[:], 0); err != nil {
			return nil, os.NewSyscallError("getrandom", err)
		}
		address := uintptr(binary.LittleEndian.Uint64(random[:]) % addressSpace)
		page, err := unix.MmapPtr(-1, 0,
			*(*unsafe.Pointer)(unsafe.Pointer(&[]uintptr{address &^ (pageSize - 1)}[0])),
			2*pageSize,
			unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
		// the address is taken or too low
		if err == unix.EEXIST || err == unix.EPERM || err == unix.ENOMEM {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		secret := unsafe.Add(page, address%pageSize)
		copy(unsafe.Slice((*byte)(secret), pageSize), path+"\x00")
		return secret, nil
	}
}

// execute loads the filter and becomes the program. Only these two calls are made under the filter.
func execute(secret unsafe.Pointer, args []string, calls []unix.SockFilter) error {
	const ( // offsets in struct seccomp_data
		number   = 0
		argument = 16
	)
	lo, hi := uint32(uintptr(secret)), uint32(uintptr(secret)>>32)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: value}
	}
	program := append([]unix.SockFilter{
		load(number), unless(unix.SYS_EXECVE, 6),
		load(argument), unless(lo, 3),
		load(argument + 4), unless(hi, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: retAllow},
		{Code: unix.BPF_RET | unix.BPF_K, K: retKill},
	}, calls...)
	argv, err := syscall.SlicePtrFromStrings(args)
	if err != nil {
		return err
	}
	envp := []*byte{nil}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(secret),
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envp[0])))
	return os.NewSyscallError("execve "+args[0], errno)
}
