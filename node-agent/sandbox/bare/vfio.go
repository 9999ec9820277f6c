package bare

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The part of the kernel's linux/vfio.h that is needed to own a device through a group and a type 1
// IOMMU.
const (
	vfioSetIOMMU          = 0x3b66
	vfioGroupGetStatus    = 0x3b67
	vfioGroupSetContainer = 0x3b68
	vfioGroupGetDeviceFD  = 0x3b6a
	vfioIOMMUMapDMA       = 0x3b71
	vfioIOMMUUnmapDMA     = 0x3b72

	type1v2     = 3
	groupViable = 1
	mapRead     = 1
	mapWrite    = 2
)

// A VF is a virtual function opened through VFIO. It holds nothing but its files: closing them, or
// the end of the process, gives the VF back.
type VF struct {
	container, group, device int    // container: or the iommufd, and no group then
	ioas                     uint32 // the iommufd's address space
}

// OpenVF opens the VF at bdf (0000:01:10.0) through its group node (/dev/vfio/N): container, group,
// IOMMU, device.
func OpenVF(group, bdf string) (*VF, error) {
	return opened(func(vf *VF) error {
		if err := vf.attach(group); err != nil {
			return err
		}
		return vf.Open(bdf)
	})
}

// Attach takes a group and puts it behind the IOMMU: all of OpenVF but the opening of the device.
func Attach(group string) (*VF, error) {
	return opened(func(vf *VF) error { return vf.attach(group) })
}

// opened is the VF that how opens, all of it or nothing.
func opened(how func(*VF) error) (*VF, error) {
	vf := &VF{container: -1, group: -1, device: -1}
	if err := how(vf); err != nil {
		vf.Close()
		return nil, err
	}
	return vf, nil
}

func (vf *VF) attach(group string) (err error) {
	if vf.container, err = unix.Open("/dev/vfio/vfio", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("/dev/vfio/vfio: %w (is vfio loaded?)", err)
	}
	if vf.group, err = unix.Open(group, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("VFIO group %s: %w", group, err)
	}
	status := struct{ argsz, flags uint32 }{argsz: 8}
	if _, err = ioctl(vf.group, vfioGroupGetStatus, uintptr(unsafe.Pointer(&status))); err != nil {
		return fmt.Errorf("VFIO group %s: status: %w", group, err)
	}
	if status.flags&groupViable == 0 {
		return fmt.Errorf(
			"VFIO group %s is not viable: another device of it is bound to a host driver", group)
	}
	container := int32(vf.container)
	if _, err = ioctl(vf.group, vfioGroupSetContainer,
		uintptr(unsafe.Pointer(&container))); err != nil {
		return fmt.Errorf("VFIO container of %s: %w", group, err)
	}
	if _, err = ioctl(vf.container, vfioSetIOMMU, type1v2); err != nil {
		return fmt.Errorf("IOMMU of %s: %w", group, err)
	}
	return nil
}

// Open opens the VF at bdf, which is the attached group's.
func (vf *VF) Open(bdf string) (err error) {
	name := append([]byte(bdf), 0)
	if vf.device, err = ioctl(vf.group, vfioGroupGetDeviceFD,
		uintptr(unsafe.Pointer(&name[0]))); err != nil {
		return fmt.Errorf("VF %s: open: %w", bdf, err)
	}
	return nil
}

// MapRAM gives the VF mib MiB of memory for DMA, from address 0 up, as a VMM does with its guest's.
func (vf *VF) MapRAM(mib int) error {
	ram, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if err := vf.Map(ram); err != nil {
		return errors.Join(err, unix.Munmap(ram))
	}
	return nil // mapped and pinned until the process ends
}

// Map gives the VF memory for DMA, from address 0 up. The memory must stay where it is until Unmap.
func (vf *VF) Map(ram []byte) error {
	command, request := uint(vfioIOMMUMapDMA), unsafe.Pointer(&struct {
		argsz, flags      uint32
		vaddr, iova, size uint64
	}{argsz: 32, flags: mapRead | mapWrite, vaddr: uint64(uintptr(unsafe.Pointer(&ram[0]))),
		size: uint64(len(ram))})
	if vf.ioas != 0 {
		command, request = iommuIOASMap, vf.ioasMap(ram)
	}
	if _, err := ioctl(vf.container, command, uintptr(request)); err != nil {
		return fmt.Errorf("map %d MiB for DMA: %w", len(ram)>>20, err)
	}
	return nil
}

// Unmap takes back what Map gave.
func (vf *VF) Unmap(ram []byte) error {
	command, request := uint(vfioIOMMUUnmapDMA), unsafe.Pointer(&struct {
		argsz, flags uint32
		iova, size   uint64
	}{argsz: 24, size: uint64(len(ram))})
	if vf.ioas != 0 {
		command, request = iommuIOASUnmap, vf.ioasUnmap(ram)
	}
	if _, err := ioctl(vf.container, command, uintptr(request)); err != nil {
		return fmt.Errorf("unmap %d MiB: %w", len(ram)>>20, err)
	}
	return nil
}

// Close gives the VF back. It may run twice.
func (vf *VF) Close() {
	for _, fd := range []*int{&vf.device, &vf.group, &vf.container} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// The argument may be a pointer: it stays where it is until the kernel is done with it.
//
//go:uintptrescapes
func ioctl(fd int, command uint, argument uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(command), argument)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return -1, os.NewSyscallError("ioctl", errno)
		}
	}
}
