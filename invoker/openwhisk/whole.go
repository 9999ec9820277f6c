package openwhisk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// writeWhole makes a file whole or not at all, so that no later start finds half of one. The file
// is put in its place by os.Link, which leaves one that is there, or by os.Rename, which replaces
// it.
func writeWhole(file string, content []byte, mode fs.FileMode, put func(from, to string) error,
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
	return put(out.Name(), file)
}
