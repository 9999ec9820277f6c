package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Many runtimes listen on all addresses of the guest, that of its VF among them: other guests would
// reach them there, past the door. So whatever listens on the runtime's TCP port in this guest does
// so on 127.0.0.1: a program that the kernel runs at each bind writes that address.

// An instruction is one of BPF's.
type instruction struct {
	code      byte
	registers byte // source << 4 | destination
	offset    int16
	immediate int32
}

const (
	load  = 0x61 // destination = *(u32 *)(source + offset)
	store = 0x63 // *(u32 *)(destination + offset) = source
	move  = 0xb7 // destination = immediate
	skip  = 0x55 // over offset instructions, if destination != immediate
	exit  = 0x95

	// Offsets in struct bpf_sock_addr.
	address4 = 4
	address6 = 8
	port     = 24
	kind     = 32
)

// staysInside makes the runtime's port one of the loopback device alone, for all processes of the
// cgroup.
func staysInside(cgroup string, port int) error {
	dir, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	const loopback = 0x0100007f // 127.0.0.1 in network order, as the registers hold it
	for hook, words := range map[uint32]map[int16]uint32{
		unix.BPF_CGROUP_INET4_BIND: {address4: loopback},
		unix.BPF_CGROUP_INET6_BIND: { // ::ffff:127.0.0.1
			address6: 0, address6 + 4: 0, address6 + 8: 0xffff0000, address6 + 12: loopback,
		},
	} {
		if err := attach(int(dir.Fd()), hook, rewrite(port, words)); err != nil {
			return fmt.Errorf("the runtime's port cannot be kept to 127.0.0.1: %w", err)
		}
	}
	return nil
}

// rewrite writes words into the address that is bound, if it is one of the TCP port.
func rewrite(listens int, words map[int16]uint32) []instruction {
	const context, value, result = 1, 2, 0
	var writes []instruction
	for offset, word := range words {
		writes = append(writes,
			instruction{move, value, 0, int32(word)},
			instruction{store, value<<4 | context, offset, 0})
	}
	over := int16(len(writes))
	program := []instruction{
		{load, context<<4 | value, kind, 0},
		{skip, value, 2 + over, unix.SOCK_STREAM},
		{load, context<<4 | value, port, 0},
		{skip, value, over, int32(listens>>8 | listens&0xff<<8)},
	}
	const allow = 1
	program = append(program, writes...)
	return append(program, instruction{move, result, 0, allow}, instruction{exit, 0, 0, 0})
}

// attach has the kernel run program at hook, for the processes of a cgroup and of those below it.
func attach(cgroup int, hook uint32, program []instruction) error {
	fd, err := loaded(hook, program)
	if err != nil {
		return fmt.Errorf("BPF_PROG_LOAD: %w", err)
	}
	defer unix.Close(fd)
	place := struct{ target, program, hook, flags uint32 }{uint32(cgroup), uint32(fd), hook, 0}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&place),
		unsafe.Sizeof(place)); err != nil {
		return fmt.Errorf("BPF_PROG_ATTACH: %w", err)
	}
	return nil
}

// loaded returns a descriptor of program. The kernel stops checking a program with EAGAIN where a
// signal waits for the thread, and Go's runtime sends its threads signals: none comes through here.
func loaded(hook uint32, program []instruction) (fd int, err error) {
	license := []byte("GPL\x00")
	load := struct {
		kind, count                uint32
		program, license           *byte
		logLevel, logSize          uint32
		log                        uint64
		version, flags             uint32
		name                       [16]byte
		device, expectedAttachment uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_SOCK_ADDR, count: uint32(len(program)),
		program: (*byte)(unsafe.Pointer(&program[0])), license: &license[0],
		expectedAttachment: hook,
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var every, before unix.Sigset_t
	for i := range every.Val {
		every.Val[i]--
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &every, &before); err != nil {
		return -1, err
	}
	fd, err = bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	return fd, errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

func bpf(command uintptr, argument unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(argument), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
