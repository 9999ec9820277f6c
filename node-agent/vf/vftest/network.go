package vftest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/vf"
)

func settingsFile(netdev string, index int) string {
	return filepath.Join("settings", fmt.Sprintf("%s.%d", netdev, index))
}

// VF returns the settings that the PF keeps for a VF. A fresh VF has no MAC and its spoof check on,
// as with igb.
func (h *Tree) VF(netdev string, index int) (vf.Settings, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings(netdev, index)
}

// VFs returns the settings that the PF keeps for each of its VFs.
func (h *Tree) VFs(netdev string) (map[int]vf.Settings, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, err := filepath.Glob(h.path("sys/bus/pci/devices/*/net", netdev))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%s: no such netdev", netdev)
	}
	all := map[int]vf.Settings{}
	for index := range h.count(filepath.Base(filepath.Dir(filepath.Dir(found[0])))) {
		if all[index], err = h.settings(netdev, index); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (h *Tree) settings(netdev string, index int) (vf.Settings, error) {
	s := vf.Settings{MAC: "00:00:00:00:00:00", SpoofCheck: true}
	data, err := os.ReadFile(h.path(settingsFile(netdev, index)))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

func (h *Tree) SetVF(netdev string, index int, want vf.Settings) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refused("setvf", fmt.Sprintf("%s/%d", netdev, index)); err != nil {
		return err
	}
	if up, _ := filepath.Glob(h.path("sys/bus/pci/devices/*/net",
		netdev, "carrier")); want.MaxRate > 0 && len(up) == 1 {
		if carrier, _ := os.ReadFile(up[0]); string(carrier) != "1\n" { // as igb
			return fmt.Errorf("rate: %w", unix.EINVAL)
		}
	}
	data, err := json.Marshal(want)
	if err != nil {
		return err
	}
	return h.replace(settingsFile(netdev, index), data)
}

// SetUp sets a netdev up or down; its carrier follows, if its cable is in.
func (h *Tree) SetUp(netdev string, up bool) error {
	flags, carrier := "0x1002", "0"
	if up {
		flags = "0x1003"
	}
	if up && h.get("settings/"+netdev+".cut") == "" {
		carrier = "1"
	}
	return h.setNetdev(netdev, map[string]string{"flags": flags, "carrier": carrier})
}

// SetCarrier cuts or mends the cable of a netdev.
func (h *Tree) SetCarrier(netdev string, up bool) error {
	carrier, cut := "0", "cut"
	if up {
		carrier, cut = "1", ""
	}
	if err := h.put("settings/"+netdev+".cut", cut); err != nil {
		return err
	}
	return h.setNetdev(netdev, map[string]string{"carrier": carrier})
}

func (h *Tree) setNetdev(netdev string, files map[string]string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.changed()
	found, err := filepath.Glob(h.path("sys/bus/pci/devices/*/net", netdev))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%s: no such netdev", netdev)
	}
	rel, err := filepath.Rel(h.Dir, found[0])
	if err != nil {
		return err
	}
	return h.putAll(rel, files)
}

// Unload takes the PF's driver away, and with it its VFs and its netdev. Load brings the driver
// back, without VFs.
func (h *Tree) Unload(pf string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.changed()
	return errors.Join(h.setVFs(pf, "0"), os.Remove(h.path(device(pf), "driver")),
		os.RemoveAll(h.path(device(pf), "net")))
}

func (h *Tree) Load(bdf string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.changed()
	pf, err := h.pf(bdf)
	if err != nil {
		return err
	}
	return errors.Join(h.addNetdev(bdf, pf.Netdev),
		h.link("../../drivers/"+pf.Driver, device(bdf), "driver"))
}

// CreateVFs makes VFs as an operator may have done before the pool came.
func (h *Tree) CreateVFs(pf string, n int) error {
	return h.Write(h.path(device(pf), "sriov_numvfs"), strconv.Itoa(n))
}

// SetConfig sets command and status register of a VF's configuration space.
func (h *Tree) SetConfig(bdf string, command, status uint16) error {
	f, err := os.OpenFile(h.path(device(bdf), "config"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{byte(command), byte(command >> 8), byte(status), byte(status >> 8)},
		4)
	return err
}
