package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const devices = "sys/bus/pci/devices"

// iommu looks for an IOMMU. Without one, a VF could reach all of the machine's memory.
func iommu(root string) Finding {
	units, groups := list(root, "sys/class/iommu"), list(root, "sys/kernel/iommu_groups")
	if len(groups) == 0 {
		return no("iommu",
			"enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or amd_iommu=on",
			"no IOMMU")
	}
	return ok("iommu", "%s, %d groups", strings.Join(units, " "), len(groups))
}

// interrupts looks for interrupt remapping. Without it, a VF could raise any interrupt of the
// machine. The kernel calls the chip of a remapped interrupt IR-.
func interrupts(root string) Finding {
	for _, irq := range list(root, "sys/kernel/irq") {
		if strings.HasPrefix(read(root, "sys/kernel/irq", irq, "chip_name"), "IR-") {
			return ok("interrupts", "remapped")
		}
	}
	if read(root, "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts") == "Y" {
		return note("interrupts",
			"a guest can raise interrupts of the host: enable x2APIC and interrupt remapping in the firmware",
			"not remapped, and vfio is told to accept that")
	}
	return no("interrupts",
		"enable interrupt remapping (x2APIC) in the firmware and do not boot with intremap=off",
		"interrupts are not remapped")
}

func vfio(root string) Finding {
	for path, module := range map[string]string{
		"dev/vfio/vfio": "vfio_iommu_type1", "sys/bus/pci/drivers/vfio-pci": "vfio-pci",
	} {
		if !exists(root, path) {
			return no("vfio", "modprobe vfio-pci vfio_iommu_type1",
				"no /%s: the module %s is not loaded", path, module)
		}
	}
	return ok("vfio", "/dev/vfio/vfio, vfio-pci")
}

// A card is a physical function with SR-IOV.
type card struct {
	bdf, driver string
	network     bool
	has, can    int // numbers of VFs
	vfs         []string
}

func (c card) String() string {
	return fmt.Sprintf("%s (%s, %d of %d VFs)", c.bdf, c.driver, c.has, c.can)
}

func findCards(root string) []card {
	var found []card
	for _, bdf := range list(root, devices) {
		can, _ := strconv.Atoi(read(root, devices, bdf, "sriov_totalvfs"))
		if can == 0 {
			continue
		}
		c := card{bdf: bdf, driver: link(root, devices, bdf, "driver"), can: can}
		c.has, _ = strconv.Atoi(read(root, devices, bdf, "sriov_numvfs"))
		c.network = strings.HasPrefix(read(root, devices, bdf, "class"), "0x02")
		if c.driver == "" {
			c.driver = "no driver"
		}
		for i := range c.has {
			c.vfs = append(c.vfs, link(root, devices, bdf, fmt.Sprintf("virtfn%d", i)))
		}
		found = append(found, c)
	}
	return found
}

// HasCard reports whether this machine has a network card with SR-IOV. Where none is, microVMs have
// taps of a bridge.
func HasCard() bool { return hasCard("/") }

func hasCard(root string) bool {
	return slices.ContainsFunc(findCards(root), func(c card) bool { return c.network })
}

// cards looks for a network card whose VFs functions can use.
func cards(root string) Finding {
	var names []string
	for _, c := range findCards(root) {
		names = append(names, c.String())
	}
	if !hasCard(root) {
		found := "no network card with SR-IOV: microVMs have taps of a bridge, and no VFs"
		if len(names) > 0 {
			found += "; only " + strings.Join(names, ", ")
		}
		return note("sr-iov", "enable SR-IOV in the firmware, or use a network card that has it",
			"%s", found)
	}
	return ok("sr-iov", "%s", strings.Join(names, ", "))
}

// tap looks for what taps are made by.
func tap(root string) Finding {
	const device = "dev/net/tun"
	if !exists(root, device) {
		return no("tap", "modprobe tun", "no /%s", device)
	}
	return ok("tap", "/%s", device)
}

// groups checks that each VF of a network card is alone in its IOMMU group. vfio gives out whole
// groups, and devices of one group can reach each other past the IOMMU. If no VFs exist yet, the
// card is checked: if it shares a group with the bridge above it, its VFs will too, because that
// bridge lacks ACS. The VFs of other devices are used by nobody here.
func groups(root string) Finding {
	all := slices.DeleteFunc(findCards(root), func(c card) bool { return !c.network })
	if len(all) == 0 || len(list(root, "sys/kernel/iommu_groups")) == 0 {
		return no("iommu groups", "", "no VF with an IOMMU group")
	}
	single := 0
	for _, c := range all {
		for _, vf := range c.vfs {
			if peers := peersOf(root, vf); len(peers) > 0 {
				return no("iommu groups", "put the card in a slot below a root port with ACS",
					"VF %s shares its IOMMU group with %s", vf,
					strings.Join(peers, ", "))
			}
			single++
		}
		if above := slices.DeleteFunc(peersOf(root, c.bdf), func(p string) bool {
			return sameDevice(p, c.bdf)
		}); len(c.vfs) == 0 && len(above) > 0 {
			return no("iommu groups", "put the card in a slot below a root port with ACS",
				"%s shares its IOMMU group with %s, so its VFs would too: a bridge above it lacks ACS",
				c.bdf, strings.Join(above, ", "))
		}
	}
	if single == 0 {
		return ok("iommu groups", "VFs will be alone in theirs")
	}
	return ok("iommu groups", "%d VFs, each alone in its own", single)
}

// peersOf returns the other devices in the IOMMU group of bdf.
func peersOf(root, bdf string) []string {
	all := list(root, devices, bdf, "iommu_group", "devices")
	return slices.DeleteFunc(all, func(p string) bool { return p == bdf })
}

// sameDevice reports whether both are functions of one device: then their addresses differ only
// after the dot.
func sameDevice(a, b string) bool {
	return strings.TrimRight(a, "01234567") == strings.TrimRight(b, "01234567")
}

// link returns the last element of a symbolic link's target, or "" if there is no link.
func link(path ...string) string {
	target, err := os.Readlink(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}
