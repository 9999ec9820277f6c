package main

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A thread that gets signals all the time, as Go's runtime sends them, loads its program too.
func TestASignalKeepsNoProgramFromLoading(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load a program of BPF")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, done := unix.Gettid(), make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
			}
		}
	})
	defer signals.Wait()
	defer close(done)
	program := rewrite(wire.RuntimePort, map[int16]uint32{address4: 0})
	for range 3000 {
		fd, err := loaded(unix.BPF_CGROUP_INET4_BIND, program)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
}
