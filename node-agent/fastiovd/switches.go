package fastiovd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Switches is the directory of the kernel's switches, and TableSwitch the one without which it
// refuses the policy Table.
const (
	Switches    = "/sys/module"
	TableSwitch = "fastiovd/parameters/allow_table"
)

// Turn turns a switch below root on or off. It does not write one that has that value already: when
// a switch that is not safe is written, whatever the value, the kernel calls itself tainted.
func Turn(root, name string, on bool) error {
	value := "N"
	if on {
		value = "Y"
	}
	path := filepath.Join(root, name)
	if now, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(now)) == value {
		return err
	}
	return os.WriteFile(path, []byte(value), 0)
}

// AllowTable makes the kernel accept memory with the policy Table until restore is called. By
// default the kernel refuses it.
func AllowTable() (restore func(), err error) {
	path := filepath.Join(Switches, TableSwitch)
	before, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = os.WriteFile(path, before, 0) }, Turn(Switches, TableSwitch, true)
}
