package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"

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
