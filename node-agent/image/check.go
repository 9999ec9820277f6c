package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// A file that was cut short or overwritten would be found by a guest that hangs, minutes later.
// What each kind says of its own form and length is looked at before a node takes it.

func checkKernel(path string) error {
	k, err := elf.Open(path)
	if err != nil {
		return damaged(path, err)
	}
	defer k.Close()
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, p := range k.Progs {
		if end := p.Off + p.Filesz; end > uint64(info.Size()) {
			return damaged(path, fmt.Errorf("it has %d bytes and should have %d or more",
				info.Size(), end))
		}
	}
	return nil
}

func checkInitrd(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const padding = 512
	if !bytes.HasPrefix(content, []byte("070701")) ||
		!bytes.Contains(content[max(0, len(content)-padding):], []byte("TRAILER!!!")) {
		return damaged(path, errors.New("it is no whole cpio archive"))
	}
	return nil
}

func checkRoot(path string) error {
	if err := rootfs.Check(path); err != nil {
		return damaged(path, err)
	}
	return nil
}

func damaged(path string, why error) error {
	return fmt.Errorf("%s is damaged: %w; remove it and have it made anew", path, why)
}

// onlyOurs returns an error if somebody may have written a program in dir, or may replace it, who
// could not replace this very program: then root must not start it.
func onlyOurs(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	err := onlyOwned(dir, ownersOfThis())
	if err != nil {
		return fmt.Errorf("%w, and root starts programs that are there; give all of %s to root, "+
			"and let nobody else write there", err, dir)
	}
	return nil
}

func ownersOfThis() []uint32 {
	owners := []uint32{0}
	if self, err := os.Stat("/proc/self/exe"); err == nil {
		owners = append(owners, self.Sys().(*syscall.Stat_t).Uid)
	}
	return owners
}

func onlyOwned(dir string, owners []uint32) error {
	whole, err := filepath.EvalSymlinks(dir)
	if err == nil {
		whole, err = filepath.Abs(whole)
	}
	if err != nil {
		return err
	}
	for above := filepath.Dir(whole); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err == nil && info.Mode()&fs.ModeSticky == 0 { // in /tmp nobody replaces others' files
			err = owned(above, info, owners)
		}
		if err != nil {
			return err
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	return filepath.WalkDir(whole, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return owned(path, info, owners)
	})
}

func owned(path string, info fs.FileInfo, owners []uint32) error {
	if uid := info.Sys().(*syscall.Stat_t).Uid; !slices.Contains(owners, uid) {
		return fmt.Errorf("%s belongs to user %d", path, uid)
	}
	if info.Mode().Type() != fs.ModeSymlink && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written by others than its owner", path)
	}
	return nil
}
