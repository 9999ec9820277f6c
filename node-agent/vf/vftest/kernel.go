package vftest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Writes counts the writes to sysfs so far.
func (h *Tree) Writes() int { return int(h.writes.Load()) }

// Write is a write to a file of sysfs, with its effect.
func (h *Tree) Write(path, value string) error {
	h.writes.Add(1)
	if _, err := os.Stat(path); err != nil {
		return err
	}
	dir, file := filepath.Base(filepath.Dir(path)), filepath.Base(path)
	value = strings.TrimSpace(value)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.changed()
	switch file {
	case "sriov_numvfs":
		for i := range h.count(dir) {
			if bdf := vfOf(dir, i); h.Held(bdf) {
				h.violation("%s was removed while held", bdf)
			}
		}
		return h.setVFs(dir, value)
	case "driver_override":
		if value == "" {
			value = "(null)"
		}
		return h.put(filepath.Join(device(dir), file), value)
	case "sriov_drivers_autoprobe":
		return h.put(filepath.Join(device(dir), file), value)
	case "drivers_probe":
		return h.probe(value)
	case "unbind":
		return h.unbind(value, dir)
	}
	return fmt.Errorf("vftest: no such attribute: %s", path)
}

func (h *Tree) refused(op, bdf string) error {
	f := h.refuse.Load()
	if f == nil {
		return nil
	}
	return (*f)(op, bdf)
}

func (h *Tree) setVFs(pf, value string) error {
	want, err := strconv.Atoi(value)
	have := h.count(pf)
	total, _ := strconv.Atoi(h.Get(pf, "sriov_totalvfs"))
	switch {
	case err != nil || want < 0 || want > total:
		return unix.ERANGE
	case have > 0 && want > 0:
		return unix.EBUSY
	case h.Driver(pf) == "":
		return unix.ENOENT
	}
	if err := h.refused("numvfs", pf); err != nil {
		return err
	}
	for i := range have {
		if err := h.removeVF(pf, i); err != nil {
			return err
		}
	}
	for i := range want {
		if err := h.addVF(pf, i); err != nil {
			return err
		}
	}
	return h.put(filepath.Join(device(pf), "sriov_numvfs"), value)
}

func (h *Tree) count(pf string) int {
	n, _ := strconv.Atoi(h.Get(pf, "sriov_numvfs"))
	return n
}

func (h *Tree) addVF(pf string, i int) error {
	bdf := vfOf(pf, i)
	group := strconv.Itoa(groupOf(bdf))
	config := make([]byte, 256)
	copy(config, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0})
	err := errors.Join(
		h.putAll(device(bdf), map[string]string{"driver_override": "(null)"}),
		h.replace(filepath.Join(device(bdf), "config"), config),
		h.link("../"+pf, device(bdf), "physfn"),
		h.link("../../../../kernel/iommu_groups/"+group, device(bdf), "iommu_group"),
		h.putAll(filepath.Join("sys/kernel/iommu_groups", group, "devices"),
			map[string]string{bdf: ""}),
		h.link("../"+bdf, device(pf), fmt.Sprintf("virtfn%d", i)))
	if err != nil {
		return err
	}
	_ = h.probe(bdf) // a driver that does not take it leaves it unbound
	return nil
}

// groupOf numbers the IOMMU groups: bus and function make them unique.
func groupOf(bdf string) int {
	var bus, slot, function int
	_, _ = fmt.Sscanf(bdf, "0000:%02x:%02x.%d", &bus, &slot, &function)
	return bus<<8 | slot<<3 | function
}

func (h *Tree) removeVF(pf string, i int) error {
	bdf := vfOf(pf, i)
	group := strconv.Itoa(groupOf(bdf))
	netdev := firstNetdev(h.path(device(pf), "net"))
	return errors.Join(
		os.RemoveAll(h.path(settingsFile(netdev, i))),
		os.Remove(h.path(device(pf), fmt.Sprintf("virtfn%d", i))),
		os.RemoveAll(h.path(device(bdf))),
		os.RemoveAll(h.path("sys/kernel/iommu_groups", group)),
		os.RemoveAll(h.path("dev/vfio", group)))
}

func firstNetdev(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

// probe binds bdf to the driver its override names, or else to its native one if the PF lets VFs be
// probed.
func (h *Tree) probe(bdf string) error {
	pf, err := h.pf(filepath.Base(h.linkTarget(bdf, "physfn")))
	if err != nil {
		return unix.ENODEV
	}
	if err := h.refused("probe", bdf); err != nil {
		return err
	}
	driver := h.Get(bdf, "driver_override")
	if driver == "(null)" {
		driver = ""
		if h.Get(pf.BDF, "sriov_drivers_autoprobe") == "1" {
			driver = pf.VFDriver
		}
	}
	if driver == "" || h.Driver(bdf) != "" {
		return nil
	}
	if driver == "vfio-pci" {
		if err := h.put(filepath.Join("dev/vfio", strconv.Itoa(groupOf(bdf))), ""); err != nil {
			return err
		}
	} else if pf.Netdev != "" && !pf.Mute {
		if err := h.addNetdev(bdf, NetdevOf(pf, bdf)); err != nil {
			return err
		}
	} else if err := h.putAll(filepath.Join(device(bdf), "nvme", "nvme1"), nil); err != nil {
		return err
	}
	return errors.Join(h.link("../../drivers/"+driver, device(bdf), "driver"),
		h.put(filepath.Join("sys/bus/pci/drivers", driver, "unbind"), ""))
}

// NetdevOf returns the name of the netdev that a VF of pf has.
func NetdevOf(pf PF, bdf string) string {
	return pf.Netdev + "v" + strings.ReplaceAll(bdf[8:], ".", "")
}

func (h *Tree) linkTarget(bdf, name string) string {
	target, _ := os.Readlink(h.path(device(bdf), name))
	return target
}

func (h *Tree) unbind(bdf, driver string) error {
	if h.Driver(bdf) != driver {
		return unix.ENODEV
	}
	if err := h.refused("unbind", bdf); err != nil {
		return err
	}
	if h.Held(bdf) {
		h.violation("%s was unbound while held", bdf)
	}
	return errors.Join(
		os.Remove(h.path(device(bdf), "driver")),
		os.RemoveAll(h.path(device(bdf), "net")), os.RemoveAll(h.path(device(bdf), "nvme")),
		os.RemoveAll(h.path("dev/vfio", strconv.Itoa(groupOf(bdf)))))
}

// Reset keeps the VFIO group open for ResetTime, as a reset through vfio does.
func (h *Tree) Reset(bdf, group string) error {
	f, err := Open(group)
	if err != nil {
		return err
	}
	defer f.Close()
	if h.Driver(bdf) != "vfio-pci" {
		h.violation("%s was reset while bound to %q", bdf, h.Driver(bdf))
	}
	time.Sleep(h.ResetTime)
	return h.refused("reset", bdf)
}

// GroupOpen asks for the lock that a holder of the group keeps.
func (h *Tree) GroupOpen(path string) (bool, error) {
	syscall.ForkLock.RLock() // a child would keep the lock up to its exec
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil, nil
}

// Held reports whether some process holds the group of bdf.
func (h *Tree) Held(bdf string) bool {
	open, err := h.GroupOpen(h.path("dev/vfio", strconv.Itoa(groupOf(bdf))))
	return err == nil && open
}

// Open holds a group as a VMM does, until the file is closed or its process ends.
func Open(group string) (*os.File, error) {
	f, err := os.OpenFile(group, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, unix.EBUSY
	}
	return f, nil
}

// Watch tells of every change of the tree that this process makes.
func (h *Tree) Watch(ctx context.Context) (<-chan struct{}, error) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	h.watchers[c] = struct{}{}
	h.mu.Unlock()
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, c)
		close(c)
	})
	return c, nil
}

// Refusals relays Refused.
func (h *Tree) Refusals(ctx context.Context) (<-chan string, error) {
	c := make(chan string)
	go func() {
		defer close(c)
		for {
			select {
			case bdf := <-h.Refused:
				c <- bdf
			case <-ctx.Done():
				return
			}
		}
	}()
	return c, nil
}

func (h *Tree) changed() {
	for c := range h.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Violation notes that something has happened that must never happen.
func (h *Tree) Violation(format string, args ...any) { h.violation(format, args...) }

func (h *Tree) violation(format string, args ...any) {
	f, err := os.OpenFile(h.path("violations"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

// Violations returns the violations that have been written down.
func (h *Tree) Violations() string { return h.get("violations") }
