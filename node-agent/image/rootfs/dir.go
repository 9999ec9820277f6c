package rootfs

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Export writes the directory sub of the tree below the existing directory dir. The files belong to
// the caller: Export keeps neither owners nor special bits, and does not change the targets of
// links. So only a tree of trusted origin may be exported.
func (t *Tree) Export(sub, dir string) error {
	n, err := t.dir(sub, false)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, sub)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	walk(n, dir, func(name string, n *node) {
		if err == nil {
			err = t.export(name, n)
		}
	})
	return err
}

func (t *Tree) export(name string, n *node) error {
	switch {
	case n.children != nil:
		return os.MkdirAll(name, 0o755)
	case n.is(syscall.S_IFLNK):
		return os.Symlink(n.target, name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(n.mode&0o755))
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, t.content(n)); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// Import adds the regular files below dir/sub for which keep returns true. They belong to root.
func (t *Tree) Import(dir, sub string, keep func(name string) bool) error {
	return filepath.WalkDir(filepath.Join(dir, sub),
		func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			inside := strings.TrimPrefix(name, filepath.Clean(dir))
			if !keep(inside) {
				return nil
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return t.Write(inside, 0o644, content)
		})
}
