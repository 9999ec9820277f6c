package kprobe

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func ioctl(fd int, command uint, argument *[40]byte) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(command),
		uintptr(unsafe.Pointer(argument)))
}
