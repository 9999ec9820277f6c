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
// takes all. Times and extended attributes are left out: equal packages give equal images, however
// they were packed.
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
		e := Entry{Name: name, Type: h.Typeflag, Link: h.Linkname, Mode: uint32(h.Mode & 0o7777),
			UID: uint32(h.Uid), GID: uint32(h.Gid), Size: h.Size}
		return t.add(&e, 0, content)
	})
}

// Layer merges an OCI layer into the tree: whiteouts delete what lower layers added, and a
// directory replaces a link of its name.
func (t *Tree) Layer(archive io.Reader) error {
	mine := map[*node]bool{}
	return eachEntry(archive, func(h *tar.Header, content io.Reader) error {
		e, err := entryOf(h)
		if err != nil {
			return err
		}
		return t.overlay(e, 0, content, mine)
	})
}

// overlay merges one entry of a layer. mine is what this layer has added, which its own whiteouts
// do not delete, and whose links lead its names elsewhere: a lower layer's do not.
func (t *Tree) overlay(e *Entry, blob uint16, content io.Reader, mine map[*node]bool) error {
	t.mine = mine
	defer func() { t.mine = nil }()
	name := path.Clean("/" + e.Name)
	dir, base := path.Split(name)
	if base == opaque {
		return t.empty(dir, mine)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return t.hide(dir, hidden, mine)
	}
	if name == "/" { // whose owner and mode are the node's to say
		return nil
	}
	e.Name = name
	if err := t.add(e, blob, content); err != nil {
		return err
	}
	t.claim(name, mine)
	return nil
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
	n, err := t.dir(dir, true)
	if err != nil || mine[n.children[name]] {
		return err
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

// add adds one entry, whose content is read or is in a blob. It leaves out devices: a root image
// needs none, and a stranger's image must not bring any.
func (t *Tree) add(e *Entry, blob uint16, content io.Reader) error {
	n := &node{mode: e.Mode & 0o7777, uid: e.UID, gid: e.GID, sec: e.Sec, nsec: e.Nsec,
		xattrs: e.Xattrs}
	switch e.Type {
	case tar.TypeDir:
		return t.addDir(e.Name, n)
	case tar.TypeReg, tar.TypeGNUSparse:
		n.mode |= syscall.S_IFREG
		if e.Size > t.maxBytes-t.end { // the header shows it already, without reading the content
			return fmt.Errorf("%s: %w: the contents exceed %d MB",
				e.Name, ErrTooLarge, t.maxBytes>>20)
		}
		if blob == 0 {
			return t.file(e.Name, n, content)
		}
		n.blob, n.off, n.size = blob, e.At, e.Size
		return t.put(e.Name, n)
	case tar.TypeFifo:
		n.mode |= syscall.S_IFIFO
		return t.put(e.Name, n)
	case tar.TypeSymlink:
		if e.Link == "" || len(e.Link) >= blockSize {
			return fmt.Errorf("%s: a symbolic link with a target of %d bytes",
				e.Name, len(e.Link))
		}
		n.mode, n.target = syscall.S_IFLNK|0o777, e.Link
		return t.put(e.Name, n)
	case tar.TypeLink:
		return t.link(e.Name, e.Link, n)
	case tar.TypeBlock, tar.TypeChar, tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%s: an archive's entry of unknown type %q", e.Name, e.Type)
}

// addDir makes name a directory with n's mode, owner, time and attributes. A directory that exists
// already keeps its content.
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
	children := dir.children
	*dir = *n
	dir.mode, dir.children = syscall.S_IFDIR|n.mode, children
	return nil
}
