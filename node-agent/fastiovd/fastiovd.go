// Package fastiovd controls fastiov's host kernel for the node: its switches, and which guest
// memory is registered with its module fastiovd.
package fastiovd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is the file through which the module is reached.
const Device = "/dev/fastiovd"

// ErrAbsent means that the kernel is not fastiov's.
var ErrAbsent = errors.New("this kernel defers no zeroing: there is no " + Device +
	"; boot fastiov's kernel and load the module fastiovd")

// From linux/fastiovd.h, which explains them.
const (
	ioctlRegister  = 0x4010f100
	ioctlStat      = 0xc028f101
	ioctlInstant   = 0x4010f103
	flagBackground = 1 << 0
)

// A Policy determines when guest memory that devices may use is allocated and zeroed.
type Policy string

// The policies.
const (
	Eager Policy = "eager" // before a device gets it, as in a stock kernel
	// allocated before; zeroed when it is touched, and at the latest when a device may use it
	PageCache Policy = "pagecache"
	// only when it is touched: for guests that touch the memory that they give to a device
	TouchMap Policy = "touchmap"
	// allocated before; zeroed when the guest touches it. Devices can read old data of others: for
	// measurements only
	Table Policy = "table"
)

// Policies lists all policies.
var Policies = []Policy{Eager, PageCache, TouchMap, Table}

var policyNumbers = map[Policy]uint32{PageCache: 1, TouchMap: 2, Table: 3}

// A Range is a part of a memory, in bytes.
type Range struct{ Offset, Length uint64 }

type register struct {
	size, policy uint32
	memfd        int32
	flags        uint32
}

// Stat reports how much of a memory is zeroed, in bytes.
type Stat struct {
	size, _    uint32
	Bytes      uint64
	Resident   uint64 // the allocated part of Bytes
	Zeroed     uint64 // the zeroed part of Resident
	Background uint64 // the part of Zeroed that the kernel zeroed in the background
}

// Register defers the zeroing of an empty memfd by a policy other than Eager. It seals the memfd's
// size. With background, the kernel begins to zero as soon as a device gets pages, unless the
// policy leaves that to the first touch. The registration lasts until the last copy of the returned
// file is closed.
func Register(memfd *os.File, policy Policy, background bool) (*os.File, error) {
	dev, err := os.OpenFile(Device, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if _, err := unix.FcntlInt(memfd.Fd(), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, fmt.Errorf("seal guest memory: %w", err)
	}
	r := register{policy: policyNumbers[policy], memfd: int32(memfd.Fd())}
	if background && policy != TouchMap {
		r.flags = flagBackground
	}
	r.size = uint32(unsafe.Sizeof(r))
	fd, errno := ioctl(dev, ioctlRegister, unsafe.Pointer(&r))
	switch {
	case errno == unix.ENOMEM && policy == TouchMap:
		return nil, fmt.Errorf(
			"register guest memory: the host cannot back it beside what others may still touch: %w",
			errno)
	case errno != 0:
		return nil, fmt.Errorf("register guest memory: %w", errno)
	}
	return os.NewFile(uintptr(fd), "registration"), nil
}

// Instant makes the kernel zero a part of a Table as soon as a device gets it, because the VMM
// writes there before its guest runs. Instant must come before the first mapping.
func Instant(registration *os.File, part Range) error {
	if _, errno := ioctl(registration, ioctlInstant, unsafe.Pointer(&part)); errno != 0 {
		return fmt.Errorf("keep %#x bytes at %#x of guest memory: %w",
			part.Length, part.Offset, errno)
	}
	return nil
}

// Read returns how much of a registered memory is zeroed.
func Read(registration *os.File) (Stat, error) {
	var s Stat
	s.size = uint32(unsafe.Sizeof(s))
	if _, errno := ioctl(registration, ioctlStat, unsafe.Pointer(&s)); errno != 0 {
		return Stat{}, fmt.Errorf("read a registration of guest memory: %w", errno)
	}
	return s, nil
}

func ioctl(f *os.File, request uintptr, argument unsafe.Pointer) (int, unix.Errno) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument))
	return int(result), errno
}
