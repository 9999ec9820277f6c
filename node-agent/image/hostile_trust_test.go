//go:build trust

package image

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestThousandForgeries: of a thousand generated hostile images none is accepted, of their thousand
// sound siblings all are, and the process that pulls them takes no more than 64 MiB for it.
func TestThousandForgeries(t *testing.T) {
	host := startForger(t)
	hostile := append(slices.Sorted(maps.Keys(forgeries)),
		slices.Sorted(maps.Keys(hugeForgeries))...)
	dir := t.TempDir()
	c := openFor(t, dir, host)
	before := peakMemory(t)
	var sound, accepted, refused int
	var mu sync.Mutex
	try := func(kind string, seed int) {
		_, release, err := c.Pull(t.Context(), fmt.Sprintf("%s/%s-%d:1", host, kind, seed), "")
		if err == nil {
			release()
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case kind == "sound" && err == nil:
			sound++
		case kind == "sound":
			t.Errorf("sound image %d: %v", seed, err)
		case err == nil:
			accepted++
			t.Errorf("hostile image %d was accepted: %s", seed, kind)
		default:
			refused++
		}
	}
	images := 1000
	if testing.Short() {
		images = 60
	}
	huge := len(hostile) - len(hugeForgeries)
	var workers sync.WaitGroup
	seeds := make(chan int)
	for range 2 {
		workers.Go(func() {
			for seed := range seeds {
				kind := seed % huge
				if seed < len(hugeForgeries) && !testing.Short() {
					kind = huge + seed
				}
				try(fmt.Sprint(kind), seed)
				try("sound", seed)
			}
		})
	}
	for seed := range images {
		seeds <- seed
	}
	close(seeds)
	workers.Wait()
	t.Logf("%d hostile images refused, %d accepted; %d of %d sound ones accepted", refused,
		accepted, sound, images)
	more := peakMemory(t) - before
	t.Logf("the agent's memory rose by %d KiB", more)
	if raced := strings.Contains(buildFlags(), "-race=true"); more > 64<<10 && !raced {
		t.Errorf("that is more than 64 MiB")
	}
	if left := children(dir + "/tmp"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// peakMemory is the largest part of this process that has been in memory, in KiB.
func peakMemory(t *testing.T) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib
		}
	}
	t.Fatal("no VmHWM in /proc/self/status")
	return 0
}

// buildFlags returns the settings that this binary was built with: the race detector takes memory
// of its own.
func buildFlags() (flags string) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			flags += s.Key + "=" + s.Value + " "
		}
	}
	return flags
}
