package image

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startsKey names the lock that is shared while a layer comes that a start waits for. A cache whose
// pulls stand aside asks for no block meanwhile.
const startsKey = "starts"

const asideFor = 100 * time.Millisecond // then it is looked again

// beside returns what a layer waits for before each block, until done.
func (c *Cache) beside(ctx context.Context) (next func(context.Context) error, done func(),
	err error) {
	if c.Aside {
		return c.standAside, func() {}, nil
	}
	lock, err := c.lock(ctx, startsKey, unix.LOCK_SH)
	if err != nil {
		return nil, nil, err
	}
	return func(context.Context) error { return nil }, func() { unlock(lock) }, nil
}

// standAside waits while starts have layers come, unless one of them waits for us.
func (c *Cache) standAside(ctx context.Context) error {
	for c.startsFetch() && !waitedFor() {
		t := time.NewTimer(asideFor)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *Cache) startsFetch() bool {
	f, err := os.Open(filepath.Join(c.dir, "locks", startsKey))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(flock(f, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// waitedFor reports whether somebody waits for a lock that this process has.
func waitedFor() bool {
	locks := allLocks()
	return slices.ContainsFunc(locks, func(w locked) bool {
		return w.waits && slices.ContainsFunc(locks, func(l locked) bool {
			return !l.waits && l.pid == os.Getpid() && l.inode == w.inode
		})
	})
}

// locked is one process that has, or waits for, the lock of a file.
type locked struct {
	pid   int
	inode string
	waits bool
}

// allLocks lists the locks of files, as the kernel has them.
func allLocks() (all []locked) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK ADVISORY READ PID MAJOR:MINOR:INODE 0 EOF, with -> in front if it waits
		of := strings.Fields(lines.Text())
		waits := len(of) > 1 && of[1] == "->"
		if waits {
			of = of[1:]
		}
		if len(of) < 6 || of[1] != "FLOCK" {
			continue
		}
		if pid, err := strconv.Atoi(of[4]); err == nil {
			all = append(all, locked{pid, of[5][strings.LastIndex(of[5], ":")+1:], waits})
		}
	}
	return all
}
