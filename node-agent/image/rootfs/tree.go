// Package rootfs makes a root file system image out of packages, layers and single files, without
// root privileges and without touching the host's file system tree.
//
// A Tree is a file system in memory: names, modes, owners and links. The contents of files are in
// one unnamed temporary file, the spool. Archives are merged into the tree in order (tar.go). The
// result is written as an EROFS image (erofs.go) or, if a tool has to work on it, as ordinary files
// (dir.go).
//
// A layer of a container image can stay as it is, too: Scan writes an index of its archive while
// that is unpacked to a file, the blob, and Overlay puts what the index says over the tree
// (index.go). The image then has names and no contents.
//
// Invariants: no path leads out of the tree, because symbolic links are resolved inside it and ".."
// stops at its root. The tree contains no inode numbers or order of creation, and no times but
// those that a layer's archive states, so equal contents give equal images.
package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

const (
	maxLinks = 40   // in one lookup, as in the kernel
	maxDepth = 1024 // of directories; a program could not name a longer path
)

// A Tree is a file system in memory. It is not safe for concurrent use.
type Tree struct {
	root  *node
	spool *os.File
	end   int64
	blobs []Blob
	mine  map[*node]bool // while a layer is put over the tree: what the layer has

	// counted so far; bytes of the names and of the targets of links
	names, naming                 int64
	maxBytes, maxNames, maxNaming int64
}

type node struct {
	mode     uint32 // st_mode: type and permissions
	uid, gid uint32
	links    uint32 // names of a regular file in the tree
	target   string // of a symbolic link
	children map[string]*node
	blob     uint16 // that has its content, counted from 1; 0: the spool has it
	off      int64  // its content there
	size     int64
	sec      int64 // last changed
	nsec     uint32
	xattrs   []Xattr
}

func (n *node) is(kind uint32) bool { return n.mode&syscall.S_IFMT == kind }

// New returns an empty tree. Its spool is an unnamed file in dir, which Close frees.
func New(dir string) (*Tree, error) {
	spool, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(spool.Name()); err != nil {
		spool.Close()
		return nil, err
	}
	return On(spool), nil
}

// On returns an empty tree that uses an empty file as its spool.
func On(spool *os.File) *Tree {
	return &Tree{
		root: newDir(0o755), spool: spool,
		maxBytes: math.MaxInt64, maxNames: math.MaxInt64, maxNaming: math.MaxInt64,
	}
}

// ErrTooLarge is the error of exceeding Limit or ReadUpTo.
var ErrTooLarge = errors.New("too large")

// Limit bounds what archives may bring: bytes of content, names, and bytes of names and of targets
// of links. Replaced files count too.
func (t *Tree) Limit(bytes, names, naming int64) {
	t.maxBytes, t.maxNames, t.maxNaming = bytes, names, naming
}

// count adds a new name to the counts.
func (t *Tree) count(name, base, target string) error {
	t.names++
	t.naming += int64(len(base) + len(target))
	switch {
	case t.names > t.maxNames:
		return fmt.Errorf("%s: %w: more than %d names", name, ErrTooLarge, t.maxNames)
	case t.naming > t.maxNaming:
		return fmt.Errorf("%s: %w: names of more than %d MB", name, ErrTooLarge, t.maxNaming>>20)
	}
	return nil
}

// Close frees the contents. The tree cannot be used after it.
func (t *Tree) Close() error { return t.spool.Close() }

func newDir(perm uint32) *node {
	return &node{mode: syscall.S_IFDIR | perm, children: map[string]*node{}}
}

// unsaidDir returns a directory that a name leads through and nobody describes. In a layer, it gets
// its group as the kernel gives it.
func (t *Tree) unsaidDir(in *node) *node {
	dir := newDir(0o755)
	if t.mine != nil && in.mode&syscall.S_ISGID != 0 {
		dir.gid = in.gid
	}
	return dir
}

// Mkdir makes the directory name with the given permissions, and its parents.
func (t *Tree) Mkdir(name string, perm uint32) error {
	dir, err := t.dir(name, true)
	if err != nil {
		return err
	}
	dir.mode = syscall.S_IFDIR | perm
	return nil
}

// Write makes the regular file name, replacing what was there.
func (t *Tree) Write(name string, perm uint32, content []byte) error {
	return t.file(name, &node{mode: syscall.S_IFREG | perm}, bytes.NewReader(content))
}

// Symlink makes name a symbolic link to target.
func (t *Tree) Symlink(name, target string) error {
	return t.put(name, &node{mode: syscall.S_IFLNK | 0o777, target: target})
}

// Remove removes name and everything below it. It succeeds if name does not exist.
func (t *Tree) Remove(name string) error {
	dir, base, err := t.parent(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if n := dir.children[base]; n != nil {
		unlink(n)
		delete(dir.children, base)
	}
	return nil
}

// Read returns the content of the regular file name, following links.
func (t *Tree) Read(name string) ([]byte, error) { return t.ReadUpTo(name, math.MaxInt64) }

// ReadUpTo is Read for a file of at most most bytes.
func (t *Tree) ReadUpTo(name string, most int64) ([]byte, error) {
	n, err := t.find(name)
	if err != nil {
		return nil, err
	}
	if !n.is(syscall.S_IFREG) {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	}
	if n.size > most {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", name, ErrTooLarge, most)
	}
	return io.ReadAll(t.content(n))
}

// Has reports whether there is a file or a directory of that name.
func (t *Tree) Has(name string) bool {
	_, err := t.find(name)
	return err == nil
}

// Glob returns the names in the directory dir that match pattern, sorted, or none if the directory
// does not exist.
func (t *Tree) Glob(dir, pattern string) []string {
	n, err := t.dir(dir, false)
	if err != nil {
		return nil
	}
	var found []string
	for _, name := range names(n) {
		if ok, _ := path.Match(pattern, name); ok {
			found = append(found, path.Join(dir, name))
		}
	}
	return found
}

// Walk calls f with the path of every name below the directory dir, sorted, without following
// links. It leaves out dir itself.
func (t *Tree) Walk(dir string, f func(name string)) error {
	n, err := t.dir(dir, false)
	if err != nil {
		return err
	}
	walk(n, path.Clean(dir), func(name string, _ *node) { f(name) })
	return nil
}

func walk(dir *node, prefix string, f func(string, *node)) {
	for _, name := range names(dir) {
		n := dir.children[name]
		f(path.Join(prefix, name), n)
		if n.children != nil {
			walk(n, path.Join(prefix, name), f)
		}
	}
}

func names(dir *node) []string {
	list := make([]string, 0, len(dir.children))
	for name := range dir.children {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// unlink subtracts one name from every file at and below n.
func unlink(n *node) {
	if n.links > 0 {
		n.links--
	}
	for _, child := range n.children {
		unlink(child)
	}
}

func (t *Tree) content(n *node) io.Reader {
	var in io.ReaderAt = t.spool
	if n.blob > 0 {
		in = t.blobs[n.blob-1]
	}
	return io.NewSectionReader(in, n.off, n.size)
}

// file puts content into the spool as n's, and adds n under the name.
func (t *Tree) file(name string, n *node, content io.Reader) error {
	size, err := io.Copy(io.NewOffsetWriter(t.spool, t.end),
		io.LimitReader(content, t.maxBytes-t.end))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t.end+size >= t.maxBytes {
		return fmt.Errorf("%s: %w: the contents exceed %d MB", name, ErrTooLarge, t.maxBytes>>20)
	}
	n.off, n.size = t.end, size
	t.end += size
	return t.put(name, n)
}

// put adds n under the name, replacing an existing entry, and makes missing parents.
func (t *Tree) put(name string, n *node) error {
	dir, base, err := t.parent(name, true)
	if err != nil {
		return err
	}
	if err := t.count(name, base, n.target); err != nil {
		return err
	}
	if old := dir.children[base]; old != nil {
		unlink(old)
	}
	if n.is(syscall.S_IFREG) {
		n.links++
	}
	dir.children[base] = n
	return nil
}

// link gives the file old another name. What the archive says of that name holds for the file.
func (t *Tree) link(name, old string, said *node) error {
	dir, base, err := t.parent(old, false)
	if err != nil {
		return err
	}
	n := dir.children[base]
	if n == nil {
		return &fs.PathError{Op: "link", Path: old, Err: fs.ErrNotExist}
	}
	if n.children != nil {
		return &fs.PathError{Op: "link", Path: old, Err: fs.ErrInvalid}
	}
	if n.is(syscall.S_IFREG) {
		n.mode = syscall.S_IFREG | said.mode
	}
	n.uid, n.gid, n.sec, n.nsec = said.uid, said.gid, said.sec, said.nsec
	n.xattrs = joined(n.xattrs, said.xattrs)
	return t.put(name, n)
}

// parent resolves all but the last element of name.
func (t *Tree) parent(name string, create bool) (dir *node, base string, err error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return nil, "", &fs.PathError{Op: "resolve", Path: name, Err: fs.ErrInvalid}
	}
	up, base := path.Split(clean)
	if len(base) > 255 {
		return nil, "", &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENAMETOOLONG}
	}
	dir, err = t.dir(up, create)
	return dir, base, err
}

// dir resolves name to a directory, following links.
func (t *Tree) dir(name string, create bool) (*node, error) {
	n, err := t.resolve(name, create)
	if err == nil && n.children == nil {
		err = &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENOTDIR}
	}
	return n, err
}

func (t *Tree) find(name string) (*node, error) { return t.resolve(name, false) }

// resolve walks name element by element. The stack holds the parent directories, so that ".." in a
// link's target leads up from that target and never above the root.
func (t *Tree) resolve(name string, create bool) (*node, error) {
	stack, rest, links := []*node{t.root}, strings.Split(name, "/"), 0
	for len(rest) > 0 {
		element, at := rest[0], stack[len(stack)-1]
		rest = rest[1:]
		switch {
		case element == "" || element == ".":
			continue
		case element == "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		case at.children == nil:
			return nil, &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENOTDIR}
		case len(element) > 255 || len(stack) > maxDepth:
			return nil, &fs.PathError{Op: "resolve", Path: name, Err: syscall.ENAMETOOLONG}
		}
		next := at.children[element]
		switch {
		case next == nil && !create:
			return nil, &fs.PathError{Op: "resolve", Path: name, Err: fs.ErrNotExist}
		case next == nil:
			if err := t.count(name, element, ""); err != nil {
				return nil, err
			}
			next = t.unsaidDir(at)
			at.children[element] = next
		case create && t.mine != nil && !t.mine[next] && next.children == nil:
			// a lower layer has a link or a file here: the layer's directory takes its place
			unlink(next)
			next = t.unsaidDir(at)
			at.children[element] = next
		case next.is(syscall.S_IFLNK):
			if links++; links > maxLinks {
				return nil, &fs.PathError{Op: "resolve", Path: name, Err: syscall.ELOOP}
			}
			if strings.HasPrefix(next.target, "/") {
				stack = stack[:1]
			}
			rest = append(strings.Split(next.target, "/"), rest...)
			continue
		}
		if create && t.mine != nil {
			t.mine[next] = true
		}
		stack = append(stack, next)
	}
	return stack[len(stack)-1], nil
}
