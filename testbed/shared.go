package testbed

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// shared is the host that the tests of one package share. It is booted when a test first needs it,
// and booted again, larger, when a test needs more than it has.
var shared sharedHost

type sharedHost struct {
	mu   sync.Mutex
	h    *Host
	conf Config
}

func (s *sharedHost) host(ctx context.Context, needs Needs) (*Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.conf.atLeast(needs)
	want.Name = fmt.Sprintf("test-%d", os.Getpid())
	if s.h != nil {
		if s.h.alive() && s.h.Config().serves(want.withDefaults()) {
			return s.h, nil
		}
		s.h.discard(ctx)
		s.h = nil
	}
	if err := sweepTests(); err != nil {
		return nil, err
	}
	h, err := up(ctx, want, os.Stderr, true)
	if err != nil {
		return nil, err
	}
	s.h, s.conf = h, want
	return h, nil
}

// end ends the host. If a test failed, it keeps the console's log.
func (s *sharedHost) end(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return
	}
	if failed {
		kept := filepath.Join(os.TempDir(), fmt.Sprintf("fastiov-%s-console.log",
			s.h.Config().Name))
		if err := place(s.h.Console(), kept); err == nil {
			fmt.Fprintln(os.Stderr, "testbed: the host's console log is", kept)
		}
	}
	s.h.discard(context.Background())
	s.h = nil
}

// atLeast returns c, made large enough for needs.
func (c Config) atLeast(needs Needs) Config {
	c.NICs = max(c.NICs, needs.NICs)
	c.NVMeVFs = max(c.NVMeVFs, needs.NVMeVFs)
	c.MemoryMiB = max(c.MemoryMiB, needs.MemoryMiB)
	c.CPUs = max(1, c.CPUs, needs.CPUs) // one, wherever a test runs
	c.Edu = c.Edu || needs.Edu
	if needs.Kernel != "" {
		c.Kernel, c.Append, c.NoSnoop = needs.Kernel, needs.Append, needs.NoSnoop
	}
	return c
}

func (h *Host) alive() bool {
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}

// lastWords returns what a QEMU that has ended said at last. The connection may be lost a little
// before.
func (h *Host) lastWords() (said string, ended bool) {
	select {
	case <-h.ended:
		return cmp.Or(lastLines(h.qemuLog(), 1), "(nothing)"), true
	case <-time.After(time.Second):
		return "", false
	}
}

// discard ends a host at once: nothing in it has to be saved.
func (h *Host) discard(ctx context.Context) {
	h.Close()
	if p, err := openProcess(h.rec.PID, h.rec.StartTicks); err == nil {
		p.kill()
		p.close()
	}
	<-h.ended
	os.RemoveAll(string(h.dir))
}

// sweepTests removes the directories of test hosts whose test was killed. Their QEMU died with the
// test.
func sweepTests() error {
	pattern, err := StateDir("test-*")
	if err != nil {
		return err
	}
	left, _ := filepath.Glob(pattern)
	for _, path := range left {
		dir(path).removeIfIdle()
	}
	return nil
}
