package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

const pciDevices = "/sys/bus/pci/devices"

// pf returns the address of the physical function that driver drives.
func pf(t *testing.T, driver string) string {
	t.Helper()
	found, _ := filepath.Glob("/sys/bus/pci/drivers/" + driver + "/0000:*/sriov_totalvfs")
	if len(found) != 1 {
		t.Fatalf("driver %s drives %d devices with SR-IOV, want 1", driver, len(found))
	}
	real, err := filepath.EvalSymlinks(filepath.Dir(found[0]))
	if err != nil {
		t.Fatal(err)
	}
	return real
}

// makeVFs creates n VFs without drivers and returns their addresses. The VFs are removed when the
// test ends.
func makeVFs(t *testing.T, pf string, n int) []string {
	t.Helper()
	write(t, filepath.Join(pf, "sriov_drivers_autoprobe"), "0")
	write(t, filepath.Join(pf, "sriov_numvfs"), fmt.Sprint(n))
	t.Cleanup(func() { write(t, filepath.Join(pf, "sriov_numvfs"), "0") })
	var vfs []string
	for i := range n {
		target, err := os.Readlink(filepath.Join(pf, fmt.Sprintf("virtfn%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		vfs = append(vfs, filepath.Base(target))
	}
	return vfs
}

func write(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0o700); err != nil {
		t.Fatal(err)
	}
}

// isolated fails the test unless each VF is alone in its IOMMU group and can be reset alone.
func isolated(t *testing.T, vfs []string) {
	t.Helper()
	for _, vf := range vfs {
		peers, err := os.ReadDir(filepath.Join(pciDevices, vf, "iommu_group", "devices"))
		if err != nil || len(peers) != 1 {
			t.Errorf("VF %s: %d devices in its IOMMU group, want it alone (%v)",
				vf, len(peers), err)
		}
		if methods, err := os.ReadFile(filepath.Join(pciDevices, vf,
			"reset_method")); !strings.Contains(string(methods), "flr") {
			t.Errorf("VF %s: reset by %q, want flr (%v)", vf, methods, err)
		}
		write(t, filepath.Join(pciDevices, vf, "reset"), "1")
	}
}

func TestNetworkCardHasSevenIsolatedVFs(t *testing.T) {
	Inside(t, Needs{NICs: 1}, func(t *testing.T) { isolated(t, makeVFs(t, pf(t, "igb"), 7)) })
}

func TestNVMeControllerHasIsolatedVFs(t *testing.T) {
	Inside(t, Needs{NVMeVFs: 64}, func(t *testing.T) { isolated(t, makeVFs(t, pf(t, "nvme"), 64)) })
}

// TestVFRegistersAnswer reads a VF's registers where the firmware puts them on a host with this
// much memory: above 4 GiB.
func TestVFRegistersAnswer(t *testing.T) {
	Inside(t, Needs{MemoryMiB: 8192}, func(t *testing.T) {
		vf := filepath.Join(pciDevices, makeVFs(t, pf(t, "igb"), 1)[0])
		lines, err := os.ReadFile(filepath.Join(vf, "resource"))
		if err != nil {
			t.Fatal(err)
		}
		var begin, end uint64
		if _, err := fmt.Sscanf(string(lines), "0x%x 0x%x", &begin, &end); err != nil ||
			begin < 1<<32 {
			t.Errorf("BAR 0 is at %#x, want it above 4 GiB (%v)", begin, err)
		}
		write(t, filepath.Join(vf, "enable"), "1")
		bar, err := os.OpenFile(filepath.Join(vf, "resource0"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer bar.Close()
		registers, err := unix.Mmap(int(bar.Fd()), 0, int(end-begin+1), unix.PROT_READ,
			unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(registers)
		const status, fullDuplex, none = 0x8, 0x1, 0xffffffff // as in the 82576's data sheet
		got := *(*uint32)(unsafe.Pointer(&registers[status]))
		if got&fullDuplex == 0 || got == none {
			t.Errorf("the VF's status register reads %#x, want full duplex", got)
		}
	})
}

func TestHostRunsMicroVMs(t *testing.T) {
	Inside(t, Needs{}, func(t *testing.T) {
		for _, device := range []string{"/dev/kvm", "/dev/vhost-vsock", "/dev/vfio/vfio"} {
			f, err := os.OpenFile(device, os.O_RDWR, 0)
			if err != nil {
				t.Error(err)
				continue
			}
			f.Close()
		}
	})
}

func TestAllMemoryIsThere(t *testing.T) {
	Inside(t, Needs{MemoryMiB: 8192}, func(t *testing.T) {
		var kib int
		raw, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err != nil ||
			kib < 7600<<10 {
			t.Errorf("%d MiB of memory, want about 8192 (%v)", kib>>10, err)
		}
	})
}
