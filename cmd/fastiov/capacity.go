package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// capacity returns how much memory admission may hand out. Where sandboxes of a former agent are there,
// it is what the former agent had: what is free now lacks what they use, and they are counted again
// when they are adopted.
func (f *nodeFlags) capacity(occupied bool) (mib int, err error) {
	noted := filepath.Join(f.runDir, "capacity") // a reboot empties the directory, and the memory
	if occupied && f.memoryMiB == 0 {
		if text, err := os.ReadFile(noted); err == nil {
			if mib, err := strconv.Atoi(string(text)); err == nil {
				return mib, nil
			}
		}
	}
	if mib, err = memoryToGive(f); err != nil {
		return 0, err
	}
	if err := os.WriteFile(noted, []byte(strconv.Itoa(mib)), 0o644); err != nil {
		return 0, fmt.Errorf("the node's capacity: %w", err)
	}
	return mib, nil
}
