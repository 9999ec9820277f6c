package image

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// guard has the kernel check what guests read of an entry whenever it is read: fs-verity keeps a
// hash of each block, and a block that is not as it was cannot be read any more. It does so where
// the file system of the cache can, as an ext4 that was made with -O verity; elsewhere nothing
// happens. The entry is on the disk, and was verified before. An error says which file has no
// hashes although the file system could keep them.
func guard(dir string) error {
	for _, name := range []string{oci.BlobName, RootName} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			continue // an entry has one of them
		}
		err = enableVerity(f)
		f.Close()
		switch err {
		case nil, unix.EEXIST, unix.ENOTTY, unix.EOPNOTSUPP:
		default:
			return fmt.Errorf("fs-verity of %s: %w", f.Name(), err)
		}
	}
	return nil
}

// enableVerity makes a file's hashes. From then on nobody can write to it.
func enableVerity(f *os.File) error {
	how := struct { // struct fsverity_enable_arg of <linux/fsverity.h>
		version, algorithm, blockSize, saltSize uint32
		salt                                    uint64
		signatureSize, _                        uint32
		signature                               uint64
		_                                       [11]uint64
	}{version: 1, algorithm: unix.FS_VERITY_HASH_ALG_SHA256, blockSize: 4096}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.FS_IOC_ENABLE_VERITY,
		uintptr(unsafe.Pointer(&how)))
	if errno != 0 {
		return errno
	}
	return nil
}
