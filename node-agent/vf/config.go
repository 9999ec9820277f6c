package vf

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
)

// Config selects the VFs of the pool and sets how each is used. A field that is zero has its
// default.
type Config struct {
	// The physical functions, each by address, driver or netdev. Empty: the only one there is.
	PFs    []string
	NumVFs int // VFs per PF; 0: as many as it has
	// How many VFs of each PF with a network, its last ones, the kernel's own driver keeps.
	NetdevVFs int
	VF        Template
	Node      string // on its network; the MACs are derived from it: the machine id

	Run     string  // run directory: /run/fastiov
	Sysfs   string  // /sys
	Dev     string  // /dev
	Kernel  Kernel  // the kernel's
	Network Network // the kernel's, by rtnetlink

	Log *slog.Logger
}

// A Template holds the settings of every VF of the pool. Spoof check is always on and trust always
// off, because the tenant is a stranger.
type Template struct {
	MACPrefix string // first bytes of the MACs, locally administered: 02:fa
	VLAN      int
	MinRate   int // Mbit/s
	MaxRate   int // Mbit/s
}

func (c Config) withDefaults() (Config, error) {
	c.VF.MACPrefix = or(c.VF.MACPrefix, "02:fa")
	c.Run, c.Sysfs, c.Dev = or(c.Run, "/run/fastiov"), or(c.Sysfs, "/sys"), or(c.Dev, "/dev")
	if c.Kernel == nil {
		c.Kernel = linux{}
	}
	if c.Network == nil {
		c.Network = rtnetlink{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.VF.VLAN < 0 || c.VF.VLAN > 4094 {
		return c, fmt.Errorf("VLAN %d is not in 0 … 4094", c.VF.VLAN)
	}
	if c.VF.MinRate < 0 || c.VF.MaxRate < 0 || c.VF.MaxRate > 0 && c.VF.MinRate > c.VF.MaxRate {
		return c, fmt.Errorf("VF rates of %d to %d Mbit/s make no sense",
			c.VF.MinRate, c.VF.MaxRate)
	}
	if c.NetdevVFs < 0 {
		return c, fmt.Errorf("%d VFs cannot be kept as network interfaces", c.NetdevVFs)
	}
	_, err := c.VF.mac("", "")
	return c, err
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

// mac derives the MAC of a VF. It stays the same after every restart, and differs for every node
// and every VF.
func (t Template) mac(node, bdf string) (string, error) {
	prefix, err := net.ParseMAC(t.MACPrefix +
		strings.Repeat(":00", max(0, 5-strings.Count(t.MACPrefix, ":"))))
	length := strings.Count(t.MACPrefix, ":") + 1
	if err != nil || length > 3 || prefix[0]&3 != 2 {
		return "", fmt.Errorf(
			"MAC prefix %q must be 1 to 3 bytes, locally administered and no multicast, like 02:fa",
			t.MACPrefix)
	}
	hash := sha256.Sum256([]byte(node + "\x00" + bdf))
	return net.HardwareAddr(slices.Concat(prefix[:length], hash[:6-length])).String(), nil
}

func (t Template) settings(mac string) Settings {
	return Settings{MAC: mac, VLAN: t.VLAN, MinRate: t.MinRate, MaxRate: t.MaxRate,
		SpoofCheck: true}
}

// choosePFs turns selectors into the addresses of PFs, each once.
func (s sysfs) choosePFs(selectors []string) ([]string, error) {
	all, err := s.pfs()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf(
			"no SR-IOV device under %s; enable SR-IOV in the firmware and load the NIC's driver, or run in the testbed",
			s.bus("devices"))
	}
	if len(selectors) == 0 {
		if len(all) > 1 {
			return nil, fmt.Errorf("several SR-IOV devices, say which to use: %s", s.describe(all))
		}
		return all, nil
	}
	var chosen []string
	for _, selector := range selectors {
		before := len(chosen)
		for _, pf := range all {
			if selector == pf || selector == s.driver(pf) || selector == s.netdev(pf) {
				chosen = append(chosen, pf)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf(
				"no SR-IOV device is %q (an address, a driver or a netdev); there is %s", selector,
				s.describe(all))
		}
	}
	slices.Sort(chosen)
	return slices.Compact(chosen), nil
}

func (s sysfs) describe(pfs []string) string {
	var parts []string
	for _, pf := range pfs {
		parts = append(parts, strings.TrimRight(fmt.Sprintf("%s %s %s", pf,
			s.driver(pf), s.netdev(pf)), " "))
	}
	return strings.Join(parts, ", ")
}
