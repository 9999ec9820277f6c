package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// QEMU is told to map guest memory on this boundary: left to itself it maps a memfd on any page, and then no huge page fits.
const hugePage = 2 << 20

// A memory is a guest's. The VMM has both files too, and what they stand for lasts as long as it does; ours are for looking.
type memory struct {
	memfd        *os.File
	registration *os.File // of memfd, if its zeroing is deferred
}

// newMemory makes guest memory: a memfd, from the 2 MiB pages set aside or from ordinary memory (in huge pages, where the host gives them
// to shared memory). Nothing is allocated yet; whoever touches it first is charged, and that is the VMM.
func newMemory(mib int, fromHugePages bool, policy fastiovd.Policy) (m memory, err error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if fromHugePages {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("ram", flags)
	if err != nil {
		return m, fmt.Errorf("guest memory: %w", err)
	}
	m.memfd = os.NewFile(uintptr(fd), "ram")
	if err = m.memfd.Truncate(int64(mib) << 20); err != nil {
		err = fmt.Errorf("guest memory of %d MiB: %w", mib, err)
	} else if policy == fastiovd.PageCache || policy == fastiovd.TouchMap {
		m.registration, err = fastiovd.Register(m.memfd, policy, true)
	}
	if err != nil {
		m.close()
	}
	return m, err
}

func (m memory) close() {
	for _, f := range []*os.File{m.memfd, m.registration} {
		if f != nil {
			f.Close()
		}
	}
}

// weigh tells how much of it there is now. Where zeroing is not deferred, what is allocated was zeroed before anybody had it.
func (m memory) weigh(at timeline.Moment) (timeline.Footprint, error) {
	if m.memfd == nil {
		return timeline.Footprint{}, errors.New("the memory of a sandbox that was adopted is not held")
	}
	if m.registration != nil {
		s, err := fastiovd.Read(m.registration)
		return timeline.Footprint{At: at, Resident: s.Resident, Zeroed: s.Zeroed}, err
	}
	var s unix.Stat_t
	err := unix.Fstat(int(m.memfd.Fd()), &s)
	allocated := uint64(s.Blocks) * 512
	return timeline.Footprint{At: at, Resident: allocated, Zeroed: allocated}, err
}
