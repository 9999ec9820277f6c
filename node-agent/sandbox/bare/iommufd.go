package bare

import (
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The part of the kernel's linux/vfio.h and linux/iommufd.h that is needed to own a device by its
// own node.
const (
	vfioDeviceBindIOMMUFD   = 0x3b76
	vfioDeviceAttachIOMMUFD = 0x3b77
	iommuIOASAlloc          = 0x3b81
	iommuIOASMap            = 0x3b85
	iommuIOASUnmap          = 0x3b86

	ioasFixed = 1
	ioasRead  = 4
	ioasWrite = 2
)

// OpenVFUnderIOMMUFD opens the VF at bdf (0000:01:10.0) by its own node, with an address space of
// an iommufd: no container, no group.
func OpenVFUnderIOMMUFD(bdf string) (*VF, error) {
	return opened(func(vf *VF) error { return vf.bind(bdf) })
}

func (vf *VF) bind(bdf string) (err error) {
	if vf.container, err = unix.Open("/dev/iommu", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("/dev/iommu: %w (is iommufd loaded?)", err)
	}
	nodes, _ := filepath.Glob("/sys/bus/pci/devices/" + bdf + "/vfio-dev/*")
	if len(nodes) != 1 {
		return fmt.Errorf(
			"VF %s has no node in /dev/vfio/devices: is it bound to vfio-pci, and the kernel built with VFIO_DEVICE_CDEV?",
			bdf)
	}
	if vf.device, err = unix.Open("/dev/vfio/devices/"+filepath.Base(nodes[0]),
		unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("VF %s: %w", bdf, err)
	}
	bind := struct {
		argsz, flags uint32
		iommufd      int32
		device       uint32
	}{argsz: 16, iommufd: int32(vf.container)}
	if _, err = ioctl(vf.device, vfioDeviceBindIOMMUFD,
		uintptr(unsafe.Pointer(&bind))); err != nil {
		return fmt.Errorf("VF %s: open: %w", bdf, err)
	}
	alloc := struct{ size, flags, ioas uint32 }{size: 12}
	if _, err = ioctl(vf.container, iommuIOASAlloc, uintptr(unsafe.Pointer(&alloc))); err != nil {
		return fmt.Errorf("address space for %s: %w", bdf, err)
	}
	attach := struct{ argsz, flags, ioas uint32 }{argsz: 12, ioas: alloc.ioas}
	if _, err = ioctl(vf.device, vfioDeviceAttachIOMMUFD,
		uintptr(unsafe.Pointer(&attach))); err != nil {
		return fmt.Errorf("address space of %s: %w", bdf, err)
	}
	vf.ioas = alloc.ioas
	return nil
}

// ioasMap is the request to map ram from address 0 up, and ioasUnmap that to take it back.
func (vf *VF) ioasMap(ram []byte) unsafe.Pointer {
	return unsafe.Pointer(&struct {
		size, flags, ioas, _ uint32
		va, length, iova     uint64
	}{size: 40, flags: ioasFixed | ioasRead | ioasWrite, ioas: vf.ioas,
		va: uint64(uintptr(unsafe.Pointer(&ram[0]))), length: uint64(len(ram))})
}

func (vf *VF) ioasUnmap(ram []byte) unsafe.Pointer {
	return unsafe.Pointer(&struct {
		size, ioas   uint32
		iova, length uint64
	}{size: 24, ioas: vf.ioas, length: uint64(len(ram))})
}
