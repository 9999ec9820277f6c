package rootfs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

// The image is written in one pass, after a layout was made:
//
//	block 0      superblock at byte 1024
//	blocks 1…    contents of files, links and directories larger than inlineMax, block-aligned,
//	             in path order
//	meta blocks  64-byte inodes, root first; contents up to inlineMax follow their inode in the
//	             same block
//
// A node id (nid) is an inode's distance from the first meta block in units of 32 bytes. Nothing is
// compressed: the reader is a microVM that has little CPU and gets its blocks from the host's page
// cache.
const (
	blockSize   = 4096
	superOffset = 1024
	magic       = 0xE0F5E1E2
	slotSize    = 32
	inodeSize   = 64
	direntSize  = 12
	inlineMax   = 2048

	inodeExtended = 1 // bit 0 of i_format
	layoutPlain   = 0 // bits 1–3 of i_format
	layoutInline  = 2
)

// imageID is every image's UUID. Images differ by their names in the cache, which are made of their
// contents.
var imageID = [16]byte{'f', 'a', 's', 't', 'i', 'o', 'v', ' ', 'r', 'o', 'o', 't', 0x80, 0, 0, 1}

// An inode is a node and its place in the image.
type inode struct {
	*node
	parent *inode
	size   int64  // of the content as stored, directories included
	nid    uint64 // in slots from the start of the meta blocks
	block  uint32 // of content that is not inline
	number uint32
}

func (i *inode) inline() bool { return i.size <= inlineMax }

type layout struct {
	inodes []*inode // in path order, root first
	of     map[*node]*inode
	meta   uint32 // first meta block
	blocks uint32 // of the whole image
}

// WriteImage writes the tree as an EROFS image to the new file name.
func (t *Tree) WriteImage(name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	return t.WriteTo(f)
}

// WriteTo writes the tree as an EROFS image to the empty file f.
func (t *Tree) WriteTo(f *os.File) error {
	l := t.layOut()
	if err := f.Truncate(int64(l.blocks) * blockSize); err != nil {
		return err
	}
	if _, err := f.WriteAt(l.super(), superOffset); err != nil {
		return err
	}
	if err := t.writeContents(f, l); err != nil {
		return err
	}
	return t.writeMeta(f, l)
}

// layOut assigns every node its place.
func (t *Tree) layOut() *layout {
	l := &layout{of: map[*node]*inode{}}
	root := l.add(t.root, nil)
	root.parent = root
	walk(t.root, "", func(name string, n *node) {
		if l.of[n] == nil {
			up, _ := t.dir(path.Dir(name), false)
			l.add(n, l.of[up])
		}
	})
	block, at := uint32(1), int64(0)
	for _, i := range l.inodes {
		need := int64(inodeSize)
		if i.inline() {
			need += i.size
		} else {
			i.block = block
			block += uint32((i.size + blockSize - 1) / blockSize)
		}
		if at%blockSize+need > blockSize { // an inode and its inline content share a block
			at = (at + blockSize - 1) / blockSize * blockSize
		}
		i.nid = uint64(at / slotSize)
		at += (need + slotSize - 1) / slotSize * slotSize
	}
	l.meta = block
	l.blocks = block + uint32((at+blockSize-1)/blockSize)
	return l
}

func (l *layout) add(n *node, parent *inode) *inode {
	i := &inode{node: n, parent: parent, number: uint32(len(l.inodes) + 1)}
	switch {
	case n.children != nil:
		i.size = dirSize(n)
	case n.is(syscall.S_IFLNK):
		i.size = int64(len(n.target))
	default:
		i.size = n.size
	}
	l.inodes = append(l.inodes, i)
	l.of[n] = i
	return i
}

// writeContents writes the content that does not fit beside its inode. In the layout it ascends
// without holes between blocks.
func (t *Tree) writeContents(f *os.File, l *layout) error {
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, blockSize), 1<<20)
	for _, i := range l.inodes {
		if i.inline() {
			continue
		}
		if _, err := io.Copy(w, t.stored(l, i)); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, (blockSize-i.size%blockSize)%blockSize)); err != nil {
			return err
		}
	}
	return w.Flush()
}

// writeMeta writes the inodes and their inline content, which ascend through the meta blocks.
func (t *Tree) writeMeta(f *os.File, l *layout) error {
	start := int64(l.meta) * blockSize
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, start), 1<<20)
	at, end := int64(0), int64(l.blocks)*blockSize-start
	var zeros [blockSize]byte
	for _, i := range l.inodes {
		place := int64(i.nid) * slotSize
		if _, err := w.Write(zeros[:place-at]); err != nil {
			return err
		}
		var b [inodeSize]byte
		l.encode(b[:], i)
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
		at = place + inodeSize
		if !i.inline() {
			continue
		}
		n, err := io.Copy(w, t.stored(l, i))
		if at += n; err == nil && n != i.size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	if _, err := w.Write(zeros[:end-at]); err != nil {
		return err
	}
	return w.Flush()
}

// encode writes struct erofs_inode_extended.
func (l *layout) encode(b []byte, i *inode) {
	le := binary.LittleEndian
	format := uint16(inodeExtended | layoutPlain<<1)
	if i.inline() {
		format = inodeExtended | layoutInline<<1
	}
	links := max(i.links, 1)
	if i.children != nil {
		links = 2
		for _, child := range i.children {
			if child.children != nil {
				links++
			}
		}
	}
	le.PutUint16(b[0:], format)
	le.PutUint16(b[4:], uint16(i.mode))
	le.PutUint64(b[8:], uint64(i.size))
	le.PutUint32(b[16:], i.block)
	le.PutUint32(b[20:], i.number)
	le.PutUint32(b[24:], i.uid)
	le.PutUint32(b[28:], i.gid)
	le.PutUint32(b[44:], links)
}

// super returns struct erofs_super_block.
func (l *layout) super() []byte {
	le, b := binary.LittleEndian, make([]byte, 128)
	le.PutUint32(b[0:], magic)
	b[12] = 12 // block size, as a power of two
	le.PutUint16(b[14:], uint16(l.inodes[0].nid))
	le.PutUint64(b[16:], uint64(len(l.inodes)))
	le.PutUint32(b[36:], l.blocks)
	le.PutUint32(b[40:], l.meta)
	copy(b[48:64], imageID[:])
	return b
}

// stored returns an inode's content as it is stored in the image.
func (t *Tree) stored(l *layout, i *inode) io.Reader {
	switch {
	case i.children != nil:
		return l.dirents(i)
	case i.is(syscall.S_IFLNK):
		return strings.NewReader(i.target)
	}
	return t.content(i.node)
}

// Check returns an error if the file is not a complete image of this package. It looks at the
// superblock and the size.
func Check(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var super [40]byte
	_, err = f.ReadAt(super[:], superOffset)
	le := binary.LittleEndian
	switch {
	case err != nil || le.Uint32(super[:]) != magic:
		return errors.New("it is no EROFS image")
	case info.Size() != int64(le.Uint32(super[36:]))*blockSize:
		return fmt.Errorf("it has %d bytes and should have %d",
			info.Size(), int64(le.Uint32(super[36:]))*blockSize)
	}
	return nil
}
