package qemu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// QEMU maps guest memory on this boundary. By itself it maps a memfd on any page, and then no huge
// page fits.
const hugePage = 2 << 20

// A memory is the memory of one guest. The VMM has both files too, and their content lasts as long
// as the VMM; ours are for looking.
type memory struct {
	mib          int
	memfd        *os.File
	registration *os.File // of memfd, if its zeroing is deferred
	ahead        uint64   // how many bytes were zeroed before the start
}

// newMemory makes guest memory: a memfd, from the 2 MiB pages set aside or from ordinary memory (in
// huge pages, if the host gives them to shared memory). Nothing is allocated yet. The process that
// touches a page first is charged for it, and that is the VMM.
func newMemory(mib int, fromHugePages bool, way arm.Arm) (m memory, err error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if fromHugePages {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("ram", flags)
	if err != nil {
		return m, fmt.Errorf("guest memory: %w", err)
	}
	m.mib, m.memfd = mib, os.NewFile(uintptr(fd), "ram")
	if err = m.memfd.Truncate(int64(mib) << 20); err != nil {
		err = fmt.Errorf("guest memory of %d MiB: %w", mib, err)
	} else if way.Memory != "" && way.Memory != fastiovd.Eager {
		m.registration, err = fastiovd.Register(m.memfd, way.Memory, way.Barrier != arm.Coop)
	}
	if err != nil {
		m.close()
	}
	return m, err
}

// zero allocates that percentage of the memory, which the kernel zeroes with it.
func (m *memory) zero(percent int) error {
	part := m.mib << 20 * percent / 100 / hugePage * hugePage
	b, err := unix.Mmap(int(m.memfd.Fd()), 0, part, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("guest memory to zero: %w", err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // as QEMU does; some kernels have none
	err = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if err = errors.Join(err, unix.Munmap(b)); err != nil {
		return fmt.Errorf("%d of %d MiB of guest memory to zero: %w", part>>20, m.mib, err)
	}
	m.ahead = uint64(part)
	return nil
}

// A stock holds the memory of guests to come.
type stock struct {
	mu    sync.Mutex
	ready []memory
}

func (s *stock) put(m memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, m)
}

// take returns memory of that size.
func (s *stock) take(mib int) (m memory, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.ready, func(m memory) bool { return m.mib == mib })
	if i < 0 {
		return m, fmt.Errorf("no memory of %d MiB that was zeroed ahead is left", mib)
	}
	m = s.ready[i]
	s.ready = slices.Delete(s.ready, i, i+1)
	return m, nil
}

func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.ready {
		m.close()
	}
	s.ready = nil
}

// keep tells a Table what QEMU and its firmware write before the guest's processor touches it: the
// first MiB, the kernel above that, and the initrd and the firmware's tables at the end of the
// memory below 4 GiB.
func (m memory) keep(kernel, initrd *os.File) error {
	const tables = 4 << 20
	low := uint64(m.mib) << 20
	if m.mib >= 2816 {
		low = 2 << 30 // as QEMU divides what would reach into the place of its devices
	}
	head, err := kernel.Stat()
	if err != nil {
		return err
	}
	tail, err := initrd.Stat()
	if err != nil {
		return err
	}
	atEnd := min(low, uint64(tail.Size())+tables)
	return errors.Join(
		fastiovd.Instant(m.registration, fastiovd.Range{Length: min(low, 1<<20+
			uint64(head.Size()))}),
		fastiovd.Instant(m.registration, fastiovd.Range{Offset: low - atEnd, Length: atEnd}))
}

func (m memory) close() {
	for _, f := range []*os.File{m.memfd, m.registration} {
		if f != nil {
			f.Close()
		}
	}
}

// weigh returns how much of the memory there is now. If zeroing is not deferred, the kernel zeroed
// all of it when it allocated it; what was zeroed before the start does not count.
func (m memory) weigh(at timeline.Moment) (timeline.Footprint, error) {
	if m.memfd == nil {
		return timeline.Footprint{}, errors.New(
			"the memory of a sandbox that was adopted is not held")
	}
	if m.registration != nil {
		s, err := fastiovd.Read(m.registration)
		return timeline.Footprint{At: at, Resident: s.Resident, Zeroed: s.Zeroed}, err
	}
	var s unix.Stat_t
	err := unix.Fstat(int(m.memfd.Fd()), &s)
	allocated := uint64(s.Blocks) * 512
	zeroed := allocated - min(allocated, m.ahead) // a VMM may give memory back
	return timeline.Footprint{At: at, Resident: allocated, Zeroed: zeroed}, err
}
