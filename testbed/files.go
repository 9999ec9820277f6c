package testbed

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
)

// check returns an error for files that cannot be what they should be. Otherwise the firmware or
// the kernel would only hang.
func check(img image.Boot) error {
	for _, f := range []struct{ what, path string }{{"kernel", img.Kernel}, {"initrd", img.Initrd},
		{"root image", img.Root}} {
		if err := checkImage(f.what, f.path); err != nil {
			return fmt.Errorf("%w: remove %s and it is made anew", err, filepath.Dir(f.path))
		}
	}
	return nil
}

func checkImage(what, path string) error {
	magic := map[string]struct {
		at   int64
		want []string
	}{
		"kernel":     {0x202, []string{"HdrS"}},
		"initrd":     {0, []string{"\x1f\x8b", "070701", "\x28\xb5\x2f\xfd", "\xfd7zXZ"}},
		"root image": {1024, []string{"\xe2\xe1\xf5\xe0"}},
	}[what]
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the testbed's %s is missing (%w)", what, err)
	}
	defer f.Close()
	got := make([]byte, 8)
	n, _ := f.ReadAt(got, magic.at)
	for _, want := range magic.want {
		if strings.HasPrefix(string(got[:n]), want) {
			return nil
		}
	}
	return fmt.Errorf("the testbed's %s is corrupt (%s does not begin like one)", what, path)
}

// place puts the file src at path, which is always either absent or complete. It copies, because
// the host may write to the files that it sees.
func place(src, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d.new", path, os.Getpid())
	defer os.Remove(tmp)
	if err := copyFile(src, tmp); err != nil {
		return diskFull(path, err)
	}
	return os.Rename(tmp, path)
}

func copyFile(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Chtimes(dst, time.Time{}, info.ModTime()))
}

// same reports whether dst is a copy of src.
func same(src, dst string) bool {
	a, err1 := os.Stat(src)
	b, err2 := os.Stat(dst)
	return err1 == nil && err2 == nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
