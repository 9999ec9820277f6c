package sandboxtest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// VFs makes the VFs of the host's first igb NIC ready for drivers under test: created, given a MAC,
// bound to vfio-pci. Addresses are those of the testbed's network. Only tests get VFs in this way;
// the product uses package vf.
func VFs(t *testing.T) []sandbox.NIC {
	t.Helper()
	pf := findPF(t)
	nics, err := os.ReadDir(pf + "/net")
	if err != nil || len(nics) == 0 {
		t.Fatalf("%s has no network interface: %v", pf, err)
	}
	link, err := netlink.LinkByName(nics[0].Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	total := strings.TrimSpace(read(t, pf+"/sriov_totalvfs"))
	if strings.TrimSpace(read(t, pf+"/sriov_numvfs")) == "0" {
		write(t, pf+"/sriov_drivers_autoprobe", "0")
		write(t, pf+"/sriov_numvfs", total)
	}
	n, err := strconv.Atoi(total)
	if err != nil {
		t.Fatal(err)
	}
	vfs := make([]sandbox.NIC, n)
	for i := range vfs {
		vfs[i] = bind(t, pf, link, i)
	}
	return vfs
}

func findPF(t *testing.T) string {
	t.Helper()
	drivers, _ := filepath.Glob("/sys/bus/pci/drivers/igb/0000:*")
	for _, device := range drivers {
		if _, err := os.Stat(device + "/sriov_totalvfs"); err == nil {
			return device
		}
	}
	t.Skip("needs an igb NIC with SR-IOV")
	return ""
}

func bind(t *testing.T, pf string, link netlink.Link, i int) sandbox.NIC {
	t.Helper()
	device, err := filepath.EvalSymlinks(fmt.Sprintf("%s/virtfn%d", pf, i))
	if err != nil {
		t.Fatal(err)
	}
	bdf := filepath.Base(device)
	mac := []byte{2, 0xf1, 0x0f, 0, 0, byte(i)}
	if err := netlink.LinkSetVfHardwareAddr(link, i, mac); err != nil {
		t.Fatal(err)
	}
	if driver, _ := os.Readlink(device + "/driver"); filepath.Base(driver) != "vfio-pci" {
		write(t, device+"/driver_override", "vfio-pci")
		write(t, "/sys/bus/pci/drivers_probe", bdf)
	}
	group, err := os.Readlink(device + "/iommu_group")
	if err != nil {
		t.Fatalf("VF %s is in no IOMMU group: %v", bdf, err)
	}
	return sandbox.NIC{
		Kind: "vf", PCI: &sandbox.PCI{BDF: bdf, Group: "/dev/vfio/" + filepath.Base(group)},
		MAC:     fmt.Sprintf("02:f1:0f:00:00:%02x", i),
		Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 2, byte(100 + i)}), 24),
		Gateway: netip.MustParseAddr("10.0.2.2"), DNS: netip.MustParseAddr("10.0.2.3"),
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}
