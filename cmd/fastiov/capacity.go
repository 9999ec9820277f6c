package main

import (
	"os"
	"path/filepath"
	"strconv"
)

// capacity returns how much memory admission may hand out. Where sandboxes of a former agent are there,
// it is what the former agent had: what is free now lacks what they use, and they are counted again
// when they are adopted.
func (f *nodeFlags) capacity(occupied bool) (mib int, err error) {
	if occupied && f.memoryMiB == 0 {
		if text, err := os.ReadFile(f.capacityFile()); err == nil {
			if mib, err := strconv.Atoi(string(text)); err == nil {
				return mib, nil
			}
		}
	}
	return memoryToGive(f)
}

// capacityFile is in the run directory: a reboot empties that, and the memory.
func (f *nodeFlags) capacityFile() string { return filepath.Join(f.runDir, "capacity") }

// noteCapacity keeps it for the next agent.
func (f *nodeFlags) noteCapacity(mib int) error {
	return os.WriteFile(f.capacityFile(), []byte(strconv.Itoa(mib)), 0o644)
}
