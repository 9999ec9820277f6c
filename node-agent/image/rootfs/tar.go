package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"syscall"
)

// The names by which a layer marks something below it as deleted.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Unpack merges a package's archive into the tree. A directory merges with an existing one, also
// through a symbolic link: /bin may be a link to usr/bin. keep decides which names are taken; nil
// takes all.
func (t *Tree) Unpack(archive io.Reader, keep func(name string) bool) error {
	return eachEntry(archive, func(h *tar.Header, content io.Reader) error {
		name := path.Clean("/" + h.Name)
		if keep != nil && !keep(name) {
			return nil
		}
		if h.Typeflag == tar.TypeDir {
			if dir, err := t.dir(name, false); err == nil {
				dir.mode, dir.uid, dir.gid = syscall.S_IFDIR|uint32(h.Mode&0o7777), uint32(h.Uid),
					uint32(h.Gid)
				return nil
			}
		}
		return t.add(name, h, content)
	})
}

// Layer merges an OCI layer into the tree: whiteouts delete what lower layers added, and a
// directory replaces a link of its name.
func (t *Tree) Layer(archive io.Reader) error {
	mine := map[*node]bool{} // what this layer has added, which its own whiteouts do not delete
	return eachEntry(archive, func(h *tar.Header, content io.Reader) error {
		name := path.Clean("/" + h.Name)
		dir, base := path.Split(name)
		if base == opaque {
			return t.empty(dir, mine)
		}
		if hidden, ok := strings.CutPrefix(base, whiteout); ok {
			return t.hide(dir, hidden, mine)
		}
		if err := t.add(name, h, content); err != nil {
			return err
		}
		t.claim(name, mine)
		return nil
	})
}

// claim records that the node at name, if add made one, belongs to the current layer.
func (t *Tree) claim(name string, mine map[*node]bool) {
	if dir, base, err := t.parent(name, false); err == nil && dir.children[base] != nil {
		mine[dir.children[base]] = true
	}
}

func (t *Tree) hide(dir, name string, mine map[*node]bool) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return fmt.Errorf("whiteout of %q in %s: not a file name", name, dir)
	}
	if n, err := t.dir(dir, false); err == nil && mine[n.children[name]] {
		return nil
	}
	return t.Remove(path.Join(dir, name))
}

func (t *Tree) empty(dir string, mine map[*node]bool) error {
	n, err := t.dir(dir, true)
	if err == nil {
		n.keepOnly(mine)
	}
	return err
}

func (n *node) keepOnly(mine map[*node]bool) {
	for name, child := range n.children {
		if mine[child] {
			child.keepOnly(mine)
			continue
		}
		unlink(child)
		delete(n.children, name)
	}
}

func eachEntry(archive io.Reader, f func(*tar.Header, io.Reader) error) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		if err := f(h, r); err != nil {
			return err
		}
	}
}

// add adds one entry. It leaves out devices, FIFOs and the like: a root image needs none, and a
// stranger's image must not bring any.
func (t *Tree) add(name string, h *tar.Header, content io.Reader) error {
	n := &node{mode: uint32(h.Mode & 0o7777), uid: uint32(h.Uid), gid: uint32(h.Gid)}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.addDir(name, n)
	case tar.TypeReg:
		n.mode |= syscall.S_IFREG
		if h.Size > t.maxBytes-t.end { // the header shows it already, without reading the content
			return fmt.Errorf("%s: %w: the contents exceed %d MB",
				name, ErrTooLarge, t.maxBytes>>20)
		}
		return t.file(name, n, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= blockSize {
			return fmt.Errorf("%s: a symbolic link with a target of %d bytes",
				name, len(h.Linkname))
		}
		n.mode, n.target = syscall.S_IFLNK|0o777, h.Linkname
		return t.put(name, n)
	case tar.TypeLink:
		return t.link(name, h.Linkname)
	}
	return nil
}

// addDir makes name a directory with n's mode and owner. A directory that exists already keeps its
// content.
func (t *Tree) addDir(name string, n *node) error {
	dir := t.root
	if name != "/" {
		up, base, err := t.parent(name, true)
		if err != nil {
			return err
		}
		if dir = up.children[base]; dir == nil || dir.children == nil {
			dir = newDir(0)
			if err := t.put(name, dir); err != nil {
				return err
			}
		}
	}
	dir.mode, dir.uid, dir.gid = syscall.S_IFDIR|n.mode, n.uid, n.gid
	return nil
}
