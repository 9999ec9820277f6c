package main

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A uring is an io_uring of one operation at a time.
type uring struct {
	fd      int
	p       uringParams
	ring    []byte // of submissions and completions
	entries []byte
}

type uringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sq                                                   struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// Operations of io_uring.
const (
	uringConnect = 16
	uringSend    = 26
	uringReceive = 27
)

func openUring() (u *uring, err error) {
	u = &uring{}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&u.p)), 0)
	if errno != 0 {
		return nil, errno
	}
	u.fd = int(fd)
	size := max(int(u.p.sq.array+4*u.p.sqEntries), int(u.p.cq.cqes+16*u.p.cqEntries))
	const protect, entriesAt = unix.PROT_READ | unix.PROT_WRITE, 0x10000000
	if u.ring, err = unix.Mmap(u.fd, 0, size, protect, unix.MAP_SHARED); err == nil {
		u.entries, err = unix.Mmap(u.fd, entriesAt, int(64*u.p.sqEntries), protect, unix.MAP_SHARED)
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *uring) close() {
	for _, m := range [][]byte{u.ring, u.entries} {
		if m != nil {
			unix.Munmap(m)
		}
	}
	unix.Close(u.fd)
}

func (u *uring) word(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&u.ring[at])) }

// do submits one operation and waits for its result.
func (u *uring) do(operation byte, fd int, at unsafe.Pointer, length uint32,
	offset uint64) (int, error) {
	tail := atomic.LoadUint32(u.word(u.p.sq.tail))
	slot := tail & *u.word(u.p.sq.mask)
	e := u.entries[64*slot : 64*slot+64]
	clear(e)
	e[0] = operation
	*(*int32)(unsafe.Pointer(&e[4])) = int32(fd)
	*(*uint64)(unsafe.Pointer(&e[8])) = offset
	*(*uint64)(unsafe.Pointer(&e[16])) = uint64(uintptr(at))
	*(*uint32)(unsafe.Pointer(&e[24])) = length
	*u.word(u.p.sq.array + 4*slot) = slot
	atomic.StoreUint32(u.word(u.p.sq.tail), tail+1)
	head := atomic.LoadUint32(u.word(u.p.cq.head))
	const waitForOne = 1
	submit := uintptr(1)
	for atomic.LoadUint32(u.word(u.p.cq.tail)) == head {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), submit, 1, waitForOne,
			0, 0)
		if errno != 0 && errno != unix.EINTR {
			return 0, errno
		}
		submit = uintptr(tail + 1 - atomic.LoadUint32(u.word(u.p.sq.head)))
	}
	runtime.KeepAlive(at)
	at32 := u.p.cq.cqes + 16*(head&*u.word(u.p.cq.mask)) + 8
	result := int32(*u.word(at32))
	atomic.StoreUint32(u.word(u.p.cq.head), head+1)
	if result < 0 {
		return 0, unix.Errno(-result)
	}
	return int(result), nil
}

// talkByUring connects, sends a line and returns the answer, all by io_uring.
func talkByUring(port int, to [4]byte, line string) (string, error) {
	u, err := openUring()
	if err != nil {
		return "", fmt.Errorf("io_uring: %w", err)
	}
	defer u.close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	address := &unix.RawSockaddrInet4{Family: unix.AF_INET, Port: uint16(port>>8 | port&0xff<<8),
		Addr: to}
	if _, err = u.do(uringConnect, fd, unsafe.Pointer(address), 0,
		uint64(unsafe.Sizeof(*address))); err != nil {
		return "", fmt.Errorf("connect by io_uring: %w", err)
	}
	sent := append([]byte(line), '\n')
	if _, err = u.do(uringSend, fd, unsafe.Pointer(&sent[0]), uint32(len(sent)), 0); err != nil {
		return "", fmt.Errorf("send by io_uring: %w", err)
	}
	heard := make([]byte, 256)
	n, err := u.do(uringReceive, fd, unsafe.Pointer(&heard[0]), uint32(len(heard)), 0)
	return string(heard[:n]), err
}
