package build

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// vmlinux takes the kernel proper out of a bzImage. QEMU boots it through its PVH entry, and so
// nobody decompresses it: in a nested guest on an emulated CPU that is a quarter of the boot. The
// price is KASLR, which is the work of the decompressor.
func vmlinux(bzImage []byte) ([]byte, error) {
	const setupSectors, signature, payloadOffset, payloadLength = 0x1f1, 0x202, 0x248, 0x24c
	if len(bzImage) < 0x250 || string(bzImage[signature:signature+4]) != "HdrS" {
		return nil, errors.New("the kernel is no bzImage")
	}
	le := binary.LittleEndian
	begin := (int64(bzImage[setupSectors])+1)*512 + int64(le.Uint32(bzImage[payloadOffset:]))
	length := int64(le.Uint32(bzImage[payloadLength:]))
	if begin+length > int64(len(bzImage)) || length < 4 {
		return nil, errors.New("the kernel's payload lies outside of its file")
	}
	// Its last four bytes are the size that it unpacks to.
	payload := bzImage[begin : begin+length-4]
	r, err := zstd.NewReader(bytes.NewReader(payload), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	kernel, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("unpacking the kernel (is it compressed by zstd?): %w", err)
	}
	if size := le.Uint32(bzImage[begin+length-4:]); uint32(len(kernel)) != size {
		return nil, fmt.Errorf("the kernel unpacks to %d bytes, not to the %d it says",
			len(kernel), size)
	}
	return kernel, hasPVHEntry(kernel)
}

// hasPVHEntry fails unless the ELF file kernel has the note by which QEMU finds where to start it.
func hasPVHEntry(kernel []byte) error {
	f, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		notes, err := io.ReadAll(p.Open())
		if err != nil {
			return err
		}
		const physEntry = "\x12\x00\x00\x00Xen\x00" // type XEN_ELFNOTE_PHYS32_ENTRY, owner Xen
		if bytes.Contains(notes, []byte(physEntry)) {
			return nil
		}
	}
	return errors.New("the kernel has no PVH entry")
}
