// Package whole makes files that nobody finds half of, also behind a crash: keys and certificates
// that every later start reads.
package whole

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write makes a file, and its folder. It is put in its place by New, which leaves one that is
// there, or by os.Rename, which replaces it.
func Write(file string, content []byte, mode fs.FileMode, put func(from, to string) error,
) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	_, err = out.Write(content)
	if err = errors.Join(err, out.Chmod(mode), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := put(out.Name(), file); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(file))
}

// SyncDir makes the names of the files in a folder durable.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// New renames a file, unless there is one of that name: then its error is fs.ErrExist. Where the
// file system cannot rename so, the file has both names for a moment.
func New(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL { // the file system cannot
		if err := os.Link(from, to); err != nil {
			return err
		}
		return os.Remove(from)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
