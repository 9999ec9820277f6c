package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// capacity returns how much memory admission may hand out. Where sandboxes of a former agent are there,
// it is what the node had when it was empty, if an agent noted that: what is free now lacks what they
// use, and they are counted again when they are adopted. empty tells that it was measured without them.
func (f *nodeFlags) capacity(occupied bool) (mib int, empty bool, err error) {
	if f.memoryMiB > 0 {
		return f.memoryMiB, false, nil
	}
	if occupied {
		if text, err := os.ReadFile(f.capacityFile()); err == nil {
			if mib, err := strconv.Atoi(string(text)); err == nil {
				return mib, false, nil
			}
		}
	}
	mib, err = memoryToGive(f)
	return mib, !occupied, err
}

// capacityFile is in the run directory: a reboot empties that, and the memory.
func (f *nodeFlags) capacityFile() string { return filepath.Join(f.runDir, "capacity") }

// noteCapacity keeps it for the next agent.
func (f *nodeFlags) noteCapacity(mib int) error {
	fresh := f.capacityFile() + ".new"
	err := os.WriteFile(fresh, []byte(strconv.Itoa(mib)), 0o644)
	if err == nil {
		err = os.Rename(fresh, f.capacityFile())
	}
	if err != nil {
		return fmt.Errorf("the node's capacity could not be noted: %w; make room there", err)
	}
	return nil
}
