package command

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// capacity returns how much memory admission may hand out. If sandboxes of a former agent are
// there, it returns what the node had when it was empty, if an agent noted that: what is free now
// lacks what they use, and they are counted again when they are adopted. empty reports whether it
// was measured without them.
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
	mib, err = f.memoryToGive()
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

// memoryToGive returns the memory that admission may hand out: the configured amount, or what is
// free now less the part that the host itself will want.
func (f *nodeFlags) memoryToGive() (int, error) {
	if f.memoryMiB > 0 {
		return f.memoryMiB, nil
	}
	if !f.sandbox.memory {
		return math.MaxInt32, nil
	}
	if f.hugePages {
		pages, err := meminfo("HugePages_Free")
		if err == nil && pages == 0 {
			err = errors.New("no huge pages are free; set some aside" +
				" (sysctl vm.nr_hugepages=1024), or leave --huge-pages out")
		}
		return pages * 2, err
	}
	kib, err := meminfo("MemAvailable")
	free := kib / 1024
	if err != nil {
		return 0, err
	}
	const forTheHost = 512
	if free <= forTheHost {
		return 0, fmt.Errorf("%d MiB of memory are free, too little for a sandbox;"+
			" free some, or set --memory", free)
	}
	return free - forTheHost, nil
}

func (f *nodeFlags) overheadMiB() int { return f.sandbox.overhead(f.hugePages) }

func meminfo(key string) (int, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var value int
		if n, _ := fmt.Sscanf(line, key+": %d", &value); n == 1 {
			return value, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", key)
}
