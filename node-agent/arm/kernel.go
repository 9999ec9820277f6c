package arm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// Apply sets the kernel's switches. The lock applies to VFs that are bound from now on. Under
// another kernel than fastiov's, only arms can be applied that leave the kernel as it is.
func (a Arm) Apply() error { return a.apply(fastiovd.Switches) }

func (a Arm) apply(root string) error {
	if a.Memory != fastiovd.Eager {
		if _, err := os.Stat(filepath.Join(root, fastiovd.TableSwitch)); err != nil {
			return fmt.Errorf("--fastiov %s: %w", a, fastiovd.ErrAbsent)
		}
	}
	for _, p := range []struct {
		name  string
		on    bool
		stock bool // the value that a kernel without this switch has
	}{
		{"vfio_pci_core/parameters/shared_vf_devset", a.Lock != PerVF, false},
		{"vfio/parameters/exclusive_devset", a.Lock == Bus, false},
		{"vfio_pci_core/parameters/elide_reset", a.Reset, false},
		{"vfio_pci_core/parameters/hold_master", a.Barrier == Strict, true},
		{fastiovd.TableSwitch, a.Memory == fastiovd.Table, false},
	} {
		err := fastiovd.Turn(root, p.name, p.on)
		switch {
		case errors.Is(err, fs.ErrNotExist) && p.on == p.stock:
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf(
				"--fastiov %s needs fastiov's kernel, and this one has no %s; boot it, or use --fastiov none, a=1 or s=0",
				a, filepath.Base(p.name))
		case err != nil:
			return fmt.Errorf("switch the kernel to --fastiov %s: %w", a, err)
		}
	}
	return nil
}
