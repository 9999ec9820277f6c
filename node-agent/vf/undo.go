package vf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// hostVersion is that of undo.json.
const hostVersion = 1

// A host records how the pool found this machine. It is written before the pool changes anything.
type host struct {
	Version int       `json:"version"`
	PFs     []foundPF `json:"pfs"`
}

type foundPF struct {
	BDF       string    `json:"bdf"`
	NumVFs    int       `json:"num_vfs"`
	Autoprobe string    `json:"autoprobe"`
	Netdev    string    `json:"netdev,omitempty"`
	Up        bool      `json:"up"`
	VFs       []foundVF `json:"vfs,omitempty"` // the VFs there were
}

type foundVF struct {
	BDF      string    `json:"bdf"`
	Index    int       `json:"index"`
	Driver   string    `json:"driver,omitempty"`
	Override string    `json:"override,omitempty"`
	Settings *Settings `json:"settings,omitempty"`
}

func hostFile(run string) string { return filepath.Join(run, "undo.json") }

// recordFound adds to the record the PFs it does not have yet.
func recordFound(run string, sys sysfs, network Network, pfs []string) error {
	h, err := readHost(run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	known := len(h.PFs)
	for _, bdf := range pfs {
		if slices.ContainsFunc(h.PFs, func(f foundPF) bool { return f.BDF == bdf }) {
			continue
		}
		f, err := observe(sys, network, bdf)
		if err != nil {
			return err
		}
		h.PFs = append(h.PFs, f)
	}
	if len(h.PFs) == known {
		return nil
	}
	data, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	if err := replace(hostFile(run), data); err != nil {
		return fmt.Errorf("record of this host: %w; is there room in %s?", err, run)
	}
	return nil
}

func readHost(run string) (host, error) {
	h := host{Version: hostVersion}
	data, err := os.ReadFile(hostFile(run))
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil || h.Version != hostVersion {
		return h, fmt.Errorf(
			"%s cannot be read (%w, version %d); put the host back by hand and remove it",
			hostFile(run), cmp.Or(err, fs.ErrInvalid), h.Version)
	}
	return h, nil
}

func observe(sys sysfs, network Network, pf string) (foundPF, error) {
	f := foundPF{BDF: pf, Netdev: sys.netdev(pf)}
	f.Up = f.Netdev != "" && sys.isUp(pf, f.Netdev)
	var err error
	if f.NumVFs, err = sys.readInt(pf, "sriov_numvfs"); err != nil {
		return f, err
	}
	if f.Autoprobe, err = sys.read(pf, "sriov_drivers_autoprobe"); err != nil {
		return f, err
	}
	vfs := sys.vfs(pf)
	var settings map[int]Settings
	if f.Netdev != "" && len(vfs) > 0 {
		if settings, err = network.VFs(f.Netdev); err != nil {
			return f, err
		}
	}
	for _, bdf := range slices.Sorted(maps.Keys(vfs)) {
		v := foundVF{BDF: bdf, Index: vfs[bdf], Driver: sys.driver(bdf)}
		if v.Override, err = sys.read(bdf, "driver_override"); err != nil {
			return f, err
		}
		if v.Override == "(null)" {
			v.Override = ""
		}
		if f.Netdev != "" {
			s, known := settings[v.Index]
			if !known {
				return f, fmt.Errorf(
					"%s does not know its VF %d; does its driver (see ethtool -i %s) support VF settings?",
					f.Netdev, v.Index, f.Netdev)
			}
			v.Settings = &s
		}
		f.VFs = append(f.VFs, v)
	}
	return f, nil
}

// Undo puts VFs, drivers and settings back as they were before the first Open with this run
// directory, and removes the pool's files. It changes nothing while an agent runs or a VF is in
// use. On a host that no pool has changed it does nothing. Of cfg it uses only the places of the
// pool's files and of the kernel's.
func Undo(cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if _, err := os.Stat(journalDir(cfg.Run)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockDir(journalDir(cfg.Run))
	if err != nil {
		return err
	}
	defer lock.Close()
	return undo(cfg.Run, sysfs{cfg.Sysfs, cfg.Dev, cfg.Kernel}, cfg.Network)
}

// undo is Undo for a caller that holds the lock. It may be cut short at any step and run again.
func undo(run string, sys sysfs, network Network) error {
	h, err := readHost(run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Hit(failpoint.UndoBegin)
	if err := unused(sys, h.PFs, journal(journalDir(run))); err != nil {
		return err
	}
	var errs []error
	for _, pf := range h.PFs {
		if err := restorePF(sys, network, pf); err != nil {
			errs = append(errs, fmt.Errorf("put PF %s back: %w", pf.BDF, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	failpoint.Hit(failpoint.UndoRestored)
	if err := os.Remove(hostFile(run)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Hit(failpoint.UndoForgotten)
	return os.RemoveAll(journalDir(run))
}

// unused fails if some process holds a VF that the pool leased, or one that would be taken away or
// unbound.
func unused(sys sysfs, pfs []foundPF, journal journal) error {
	entries, err := journal.read(func(string, error) {})
	if err != nil {
		return err
	}
	for _, pf := range pfs {
		for bdf := range sys.vfs(pf.BDF) {
			i := slices.IndexFunc(pf.VFs, func(v foundVF) bool { return v.BDF == bdf })
			stays := i >= 0 && pf.VFs[i].Driver == driverVFIO
			if stays && entries[bdf].State != Leased {
				continue
			}
			if err := unheld(sys, bdf, entries[bdf]); err != nil {
				return err
			}
		}
	}
	return nil
}

func unheld(sys sysfs, bdf string, e entry) error {
	switch driver := sys.driver(bdf); {
	case driver == driverVFIO:
	case driver != "" && e.State != Idle && e.Driver == Netdev:
		// The kernel brings that of a container which has just ended back a little later.
		if _, err := sys.awaitNetdev(context.Background(), bdf); err != nil {
			return fmt.Errorf("VF %s is a network interface of a container that lives; "+
				"end the container", bdf)
		}
		if why := sys.inUse(bdf, driver); e.State == Leased && why != "" {
			return fmt.Errorf("VF %s is in use by %s: %s", bdf, e.Owner, why)
		}
		return nil
	default:
		return nil
	}
	group, err := sys.group(bdf)
	if err != nil {
		return nil // without a group nothing can hold it through vfio
	}
	open, err := sys.kernel.GroupOpen(group)
	if err != nil {
		return err
	}
	if open {
		return fmt.Errorf("VF %s is in use (%s is open); drain the node first", bdf, group)
	}
	return nil
}

func restorePF(sys sysfs, network Network, pf foundPF) error {
	if !sys.exists(pf.BDF) {
		return nil
	}
	have, err := sys.readInt(pf.BDF, "sriov_numvfs")
	if err != nil {
		return err
	}
	if pf.NumVFs == 0 && have > 0 {
		if err := sys.write(sys.device(pf.BDF, "sriov_numvfs"), "0"); err != nil {
			return fmt.Errorf("remove its VFs: %w", err)
		}
	}
	// A VF takes a native driver only while autoprobe is on, so it is on while drivers are put
	// back.
	autoprobe := sys.device(pf.BDF, "sriov_drivers_autoprobe")
	if err := sys.write(autoprobe, "1"); err != nil {
		return err
	}
	if pf.NumVFs > 0 && have == 0 {
		if err := sys.write(sys.device(pf.BDF, "sriov_numvfs"),
			strconv.Itoa(pf.NumVFs)); err != nil {
			return err
		}
	}
	for _, v := range pf.VFs {
		if err := restoreVF(sys, network, pf.Netdev, v); err != nil {
			return fmt.Errorf("VF %s: %w", v.BDF, err)
		}
		failpoint.Hit(failpoint.UndoVF)
	}
	if err := sys.write(autoprobe, pf.Autoprobe); err != nil {
		return err
	}
	if pf.Netdev != "" && !pf.Up && sys.isUp(pf.BDF, pf.Netdev) {
		return network.SetUp(pf.Netdev, false)
	}
	return nil
}

func restoreVF(sys sysfs, network Network, netdev string, v foundVF) error {
	if !sys.exists(v.BDF) {
		return nil
	}
	if v.Settings != nil {
		if err := network.SetVF(netdev, v.Index, *v.Settings); err != nil {
			return err
		}
	}
	driver := sys.driver(v.BDF)
	if driver != "" && driver != v.Driver {
		if err := sys.write(sys.bus("drivers", driver, "unbind"), v.BDF); err != nil {
			return err
		}
		driver = ""
	}
	// A driver other than the native one needs the override that named it.
	if driver == "" && v.Driver != "" {
		if err := sys.write(sys.device(v.BDF, "driver_override"), v.Driver); err != nil {
			return err
		}
		if err := sys.write(sys.bus("drivers_probe"), v.BDF); err != nil {
			return err
		}
	}
	return sys.write(sys.device(v.BDF, "driver_override"), v.Override+"\n")
}
