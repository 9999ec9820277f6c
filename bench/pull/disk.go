package pull

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A disk is a file system of a receiver's own, in one sparse file. What the receivers before it
// deleted slows it no more than others: an ext4 passes over the inodes that it has freed within the
// last minutes, and a receiver that writes ten thousands of files would pay for its predecessor's.
type disk struct {
	file, at string
	stat     string // the kernel's counts of the block device, once it is mounted
}

const diskBytes = 16 << 30

// newDisk makes a disk in a folder, and mounts it.
func newDisk(dir string) (d *disk, err error) {
	d = &disk{file: filepath.Join(dir, "disk.img"), at: filepath.Join(dir, "disk")}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove())
		}
	}()
	if err := os.Mkdir(d.at, 0o755); err != nil {
		return d, err
	}
	f, err := os.Create(d.file)
	if err == nil {
		err = errors.Join(f.Truncate(diskBytes), f.Close())
	}
	if err != nil {
		return d, err
	}
	// The kernel would go on to write the tables of inodes while somebody pulls.
	for _, words := range [][]string{
		{"mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", d.file},
		{"mount", "-o", "loop,noinit_itable", d.file, d.at},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return d, fmt.Errorf("a disk for who pulls: %s: %w: %s", words[0], err, out)
		}
	}
	var s unix.Stat_t
	if err := unix.Stat(d.at, &s); err != nil {
		return d, err
	}
	d.stat = fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(s.Dev), unix.Minor(s.Dev))
	return d, nil
}

// sync returns when all is written.
func (d *disk) sync() error {
	f, err := os.Open(d.at)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// written returns how many bytes were written to the disk, its own tables and journal included.
func (d *disk) written() (int64, error) {
	const sectors, sector = 6, 512
	b, err := os.ReadFile(d.stat)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.Fields(string(b))[sectors], 10, 64)
	return n * sector, err
}

// used returns how many bytes of the disk are taken.
func (d *disk) used() (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(d.at, &s)
	return int64(s.Blocks-s.Bfree) * s.Bsize, err
}

// remove unmounts the disk, which takes what is mounted in it along, and deletes it.
func (d *disk) remove() error {
	err := unix.Unmount(d.at, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // nothing is mounted there
		err = nil
	}
	return errors.Join(err, os.RemoveAll(d.at), os.RemoveAll(d.file))
}
