package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// moduleLists name what is loaded. What a guest is to measure with, or has a tap for, is in further
// archives of its initrd.
var moduleLists = []string{"/modules", "/region-modules", "/tap-modules"}

// nicDriverNames lists the drivers of NICs. They are loaded alongside, for a VF's waits for its
// hardware.
var nicDriverNames = map[string]bool{"igbvf": true, "iavf": true, "ixgbevf": true,
	"mlx5_core": true, "virtio_net": true}

// drivers holds the drivers of NICs that are being loaded.
type drivers struct {
	loading sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// wait returns when all have probed the devices there are.
func (d *drivers) wait(within time.Duration) error {
	loaded := make(chan struct{})
	go func() { d.loading.Wait(); close(loaded) }()
	select {
	case <-loaded:
	case <-time.After(within):
		return fmt.Errorf("its driver has not probed it within %v", within)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// loadModules loads the modules that the lists name, one path a line, in that order, and returns
// while the drivers of NICs among them still probe. A list that is not there names nothing.
func loadModules(rec *recorder, lists ...string) (*drivers, error) {
	nic := &drivers{}
	var paths []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		paths = append(paths, strings.Fields(string(text))...)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".ko")
		file, err := take(path) // by now: while a NIC's driver loads, the root directory changes
		if err != nil {
			return nil, err
		}
		if nicDriverNames[strings.ReplaceAll(name, "-", "_")] {
			nic.loading.Go(func() { nic.load(file, name, rec) })
			continue
		}
		if err := rec.step("module "+name, func() error { return loadModule(file) }); err != nil {
			return nil, err
		}
	}
	return nic, nil
}

func (d *drivers) load(file *os.File, name string, rec *recorder) {
	begin := boottime()
	err := rec.stepOf(vfStage, "module "+name, func() error { return loadModule(file) })
	rec.stage(vfStage, begin)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = errors.Join(d.err, err)
}

// take opens a module's file and removes its name, for the initrd is memory.
func take(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("a kernel module is missing: %w", err)
	}
	os.Remove(path)
	return file, nil
}

// loadModule loads a module and closes its file.
func loadModule(file *os.File) error {
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("the kernel module %s does not load: %w", file.Name(), err)
	}
	return nil
}
