package vf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A VF is reset by opening it through vfio: the open does a function-level reset, and until it is
// done the kernel lets no other process have the VF. The file "reset" of sysfs does the same reset,
// but under a lock of the PF's port, one VF after the other, and also of a VF that is in use.

// From linux/vfio.h.
const (
	vfioSetIOMMU          = 0x3b66
	vfioGroupSetContainer = 0x3b68
	vfioGroupGetDeviceFD  = 0x3b6a
	vfioDeviceGetInfo     = 0x3b6b
	vfioType1v2           = 3
	vfioInfoCanReset      = 1 << 0
)

type vfioDeviceInfo struct{ argsz, flags, regions, irqs, caps, pad uint32 }

func (linux) Reset(bdf, group string) error {
	g, err := os.OpenFile(group, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	container, err := os.OpenFile(filepath.Join(filepath.Dir(group), "vfio"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer container.Close()
	if err := unix.IoctlSetPointerInt(int(g.Fd()), vfioGroupSetContainer,
		int(container.Fd())); err != nil {
		return fmt.Errorf("put %s into a vfio container: %w", group, err)
	}
	if err := unix.IoctlSetInt(int(container.Fd()), vfioSetIOMMU, vfioType1v2); err != nil {
		return fmt.Errorf("attach %s to the IOMMU: %w; is vfio_iommu_type1 loaded?", group, err)
	}
	name, err := unix.BytePtrFromString(bdf)
	if err != nil {
		return err
	}
	fd, errno := ioctl(g.Fd(), vfioGroupGetDeviceFD, unsafe.Pointer(name))
	if errno != 0 {
		return fmt.Errorf("open %s: %w", bdf, errno)
	}
	defer unix.Close(fd)
	info := vfioDeviceInfo{argsz: uint32(unsafe.Sizeof(vfioDeviceInfo{}))}
	if _, errno := ioctl(uintptr(fd), vfioDeviceGetInfo, unsafe.Pointer(&info)); errno != 0 {
		return fmt.Errorf("ask %s about its reset: %w", bdf, errno)
	}
	if info.flags&vfioInfoCanReset == 0 {
		return errors.New("it did not take a function-level reset")
	}
	return nil
}

func ioctl(fd, request uintptr, argument unsafe.Pointer) (int, unix.Errno) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(argument))
	return int(result), errno
}
