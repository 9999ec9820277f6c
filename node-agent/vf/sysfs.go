package vf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

const driverVFIO = "vfio-pci"

// A sysfs is the device tree under root, and the vfio nodes under dev. Its methods read the files
// at that moment and keep nothing.
type sysfs struct {
	root, dev string
	kernel    Kernel
}

func (s sysfs) bus(elem ...string) string {
	return filepath.Join(append([]string{s.root, "bus", "pci"}, elem...)...)
}

func (s sysfs) device(bdf string, elem ...string) string {
	return s.bus(append([]string{"devices", bdf}, elem...)...)
}

func (s sysfs) read(bdf, file string) (string, error) {
	data, err := os.ReadFile(s.device(bdf, file))
	return strings.TrimSpace(string(data)), err
}

func (s sysfs) readInt(bdf, file string) (int, error) {
	text, err := s.read(bdf, file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// write adds to an error what the operator can do about it.
func (s sysfs) write(path, value string) error {
	return rooted(s.kernel.Write(path, value))
}

func rooted(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; run as root", err)
	}
	return err
}

func (s sysfs) exists(bdf string) bool {
	_, err := os.Stat(s.device(bdf))
	return err == nil
}

// driver is the driver that bdf is bound to, or "".
func (s sysfs) driver(bdf string) string { return linkName(s.device(bdf, "driver")) }

func linkName(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// netdev is the first network device of bdf, or "".
func (s sysfs) netdev(bdf string) string {
	return firstName(s.device(bdf, "net"))
}

func firstName(dir string) string {
	entries, _ := os.ReadDir(dir)
	if len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

// carrier reports whether the link of a PF's netdev is up. A PF without a netdev (NVMe) has no link
// to lose.
func (s sysfs) carrier(bdf, netdev string) bool {
	if netdev == "" {
		return true
	}
	up, err := s.read(bdf, filepath.Join("net", netdev, "carrier"))
	return err == nil && up == "1" // an interface that is down refuses the read
}

func (s sysfs) isUp(bdf, netdev string) bool {
	flags, err := s.read(bdf, filepath.Join("net", netdev, "flags"))
	n, parseErr := strconv.ParseUint(strings.TrimPrefix(flags, "0x"), 16, 32)
	return err == nil && parseErr == nil && n&1 == 1
}

// pfs lists the addresses of all physical functions that can have VFs.
func (s sysfs) pfs() ([]string, error) {
	found, err := filepath.Glob(s.bus("devices", "*", "sriov_totalvfs"))
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i] = filepath.Base(filepath.Dir(found[i]))
	}
	slices.Sort(found)
	return found, nil
}

// vfs maps the addresses of pf's VFs to their indices.
func (s sysfs) vfs(pf string) map[string]int {
	links, _ := filepath.Glob(s.device(pf, "virtfn*"))
	found := map[string]int{}
	for _, link := range links {
		index, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(link), "virtfn"))
		if bdf := linkName(link); err == nil && bdf != "" {
			found[bdf] = index
		}
	}
	return found
}

// create makes want VFs (0: as many as the PF has), unless the PF has some already: those may be in
// use and cannot be renumbered.
func (s sysfs) create(pf string, want int) error {
	total, err := s.readInt(pf, "sriov_totalvfs")
	if err != nil {
		return err
	}
	if want > total {
		return fmt.Errorf("PF %s can have %d VFs, %d are wanted; ask for fewer", pf, total, want)
	}
	have, err := s.readInt(pf, "sriov_numvfs")
	switch {
	case err != nil:
		return err
	case have > 0 && want > 0 && have != want:
		return fmt.Errorf(
			"PF %s has %d VFs already, %d are wanted; remove them (echo 0 > %s) or ask for %d", pf,
			have, want, s.device(pf, "sriov_numvfs"), have)
	case have > 0:
		return nil
	case total == 0:
		return fmt.Errorf("PF %s can have no VFs; enable them in its firmware settings", pf)
	case want == 0:
		want = total
	}
	if err := s.write(s.device(pf, "sriov_numvfs"), strconv.Itoa(want)); err != nil {
		return fmt.Errorf("create %d VFs on PF %s: %w; see the kernel log", want, pf, err)
	}
	return nil
}

// group returns the node of bdf's IOMMU group. The group must hold bdf alone, because a process
// that opens a group gets every device in it.
func (s sysfs) group(bdf string) (string, error) {
	name := linkName(s.device(bdf, "iommu_group"))
	if name == "" {
		return "", errors.New(
			"it has no IOMMU group; enable the IOMMU in the firmware and boot with intel_iommu=on or amd_iommu=on")
	}
	members, err := os.ReadDir(s.device(bdf, "iommu_group", "devices"))
	if err != nil {
		return "", err
	}
	if len(members) != 1 {
		return "", fmt.Errorf(
			"it shares IOMMU group %s with %d other devices; use a slot behind bridges with ACS",
			name, len(members)-1)
	}
	return filepath.Join(s.dev, "vfio", name), nil
}

// inUse tells why bdf must not be taken from its native driver, or "".
func (s sysfs) inUse(bdf, driver string) string {
	netdev := s.netdev(bdf)
	namespaces, _ := filepath.Glob(s.device(bdf, "nvme", "nvme*", "nvme*n*"))
	_, nvmeErr := os.Stat(s.device(bdf, "nvme"))
	switch {
	case netdev != "" && s.isUp(bdf, netdev):
		return fmt.Sprintf("its netdev %s is up; set it down (ip link set %s down)", netdev, netdev)
	case netdev != "":
		return ""
	case len(namespaces) > 0:
		return fmt.Sprintf("it serves the block device %s; detach that",
			filepath.Base(namespaces[0]))
	case nvmeErr == nil:
		return ""
	}
	return fmt.Sprintf("driver %s has it and does not show for what; unbind it (echo %s > %s)",
		driver, bdf, s.bus("drivers", driver, "unbind"))
}

// bind gives bdf to vfio-pci, and to it alone, unless that is so.
func (s sysfs) bind(bdf string) error {
	driver := s.driver(bdf)
	if driver == driverVFIO {
		return nil
	}
	if _, err := os.Stat(s.bus("drivers", driverVFIO)); err != nil {
		return errors.New("the driver vfio-pci is not there; load it (modprobe vfio-pci)")
	}
	if driver != "" {
		if why := s.inUse(bdf, driver); why != "" {
			return fmt.Errorf("busy elsewhere: %s", why)
		}
		if err := s.write(s.bus("drivers", driver, "unbind"), bdf); err != nil {
			return fmt.Errorf("unbind from %s: %w", driver, err)
		}
		failpoint.Hit(failpoint.PrepareUnbound)
	}
	if err := s.write(s.device(bdf, "driver_override"), driverVFIO); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PrepareOverride)
	if err := s.write(s.bus("drivers_probe"), bdf); err != nil {
		return fmt.Errorf("bind to vfio-pci: %w", err)
	}
	failpoint.Hit(failpoint.PrepareBound)
	if driver := s.driver(bdf); driver != driverVFIO {
		return fmt.Errorf("vfio-pci does not take it (driver now: %q); see the kernel log", driver)
	}
	return nil
}

// bindNative takes bdf from vfio-pci and gives it to the kernel's own driver. A VF gets that only
// while its PF lets VFs be probed, so the caller has one VF bound at a time.
func (s sysfs) bindNative(pf, bdf string) error {
	if driver := s.driver(bdf); driver != "" {
		if err := s.write(s.bus("drivers", driver, "unbind"), bdf); err != nil {
			return fmt.Errorf("unbind from %s: %w", driver, err)
		}
	}
	if err := s.write(s.device(bdf, "driver_override"), "\n"); err != nil {
		return err
	}
	failpoint.Hit(failpoint.NetdevUnbound)
	autoprobe := s.device(pf, "sriov_drivers_autoprobe")
	if err := s.write(autoprobe, "1"); err != nil {
		return err
	}
	err := s.write(s.bus("drivers_probe"), bdf)
	if err := errors.Join(err, s.write(autoprobe, "0")); err != nil {
		return fmt.Errorf("bind to its own driver: %w", err)
	}
	failpoint.Hit(failpoint.NetdevBound)
	if s.driver(bdf) == "" {
		return fmt.Errorf("no driver takes it; load the one that lspci -k -s %s names", bdf)
	}
	return nil
}

// awaitNetdev returns the netdev that its driver makes of bdf: some, as iavf, do so a little after
// they have taken the device.
func (s sysfs) awaitNetdev(ctx context.Context, bdf string) (string, error) {
	for begin := time.Now(); time.Since(begin) < netdevWithin; time.Sleep(netdevAsked) {
		if netdev := s.netdev(bdf); netdev != "" {
			return netdev, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
	return "", fmt.Errorf("driver %s makes no network interface of it within %s; "+
		"see the kernel log", s.driver(bdf), netdevWithin)
}

// How long a driver may take to make a network interface, and how often it is looked for.
const (
	netdevWithin = 5 * time.Second
	netdevAsked  = 10 * time.Millisecond
)

// reset brings a VF that nobody holds into the state it had when it was new, and checks that.
func (s sysfs) reset(bdf, group string) error {
	failpoint.Hit(failpoint.ResetBegin)
	if driver := s.driver(bdf); driver != driverVFIO {
		return fmt.Errorf("busy elsewhere: it is bound to %q, not to vfio-pci", driver)
	}
	if err := s.kernel.Reset(bdf, group); errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("busy elsewhere: some process holds %s; end it (fuser -v %s)",
			group, group)
	} else if err != nil {
		return fmt.Errorf("reset: %w", rooted(err))
	}
	failpoint.Hit(failpoint.ResetDone)
	if err := s.check(bdf); err != nil {
		return fmt.Errorf("after its reset %w", err)
	}
	failpoint.Hit(failpoint.ResetChecked)
	return nil
}

const (
	configCommand   = 0x04
	configStatus    = 0x06
	commandMaster   = 1 << 2
	statusCapPtr    = 1 << 4
	configHeaderLen = 64
)

// check fails unless a VF answers, cannot master the bus and is bound to vfio-pci. It asks the
// status register, whose capability bit is fixed to 1, and not the vendor id: by the standard a
// VF's vendor id reads as ffff, as that of a dead device does.
func (s sysfs) check(bdf string) error {
	f, err := os.Open(s.device(bdf, "config"))
	if err != nil {
		return err
	}
	defer f.Close()
	header := make([]byte, configHeaderLen)
	if _, err := f.ReadAt(header, 0); err != nil {
		return fmt.Errorf("its configuration space cannot be read: %w", err)
	}
	command, status := binary.LittleEndian.Uint16(header[configCommand:]),
		binary.LittleEndian.Uint16(header[configStatus:])
	switch {
	case status == 0xffff || status&statusCapPtr == 0:
		return fmt.Errorf("it does not answer (status register %04x)", status)
	case command&commandMaster != 0:
		return fmt.Errorf("it can still master the bus (command register %04x)", command)
	case s.driver(bdf) != driverVFIO:
		return fmt.Errorf("it is bound to %q, not to vfio-pci", s.driver(bdf))
	}
	return nil
}
