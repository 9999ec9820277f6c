package rootfs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"
	"syscall"
)

// The image is written in one pass, after a layout was made:
//
//	block 0…     superblock at byte 1024, and the table of blobs behind it
//	blocks       contents of files, links and directories larger than inlineMax, block-aligned,
//	             in path order
//	meta blocks  64-byte inodes, root first; contents up to inlineMax follow their inode in the
//	             same block
//
// A node id (nid) is an inode's distance from the first meta block in units of 32 bytes. Nothing is
// compressed: the reader is a microVM that has little CPU and gets its blocks from the host's page
// cache.
//
// The contents of an indexed layer stay in its blob, a tar archive, where they begin at multiples
// of 512 bytes. So a tree with blobs has blocks of that size. Behind the inode of such a file there
// is the blob's number and the block where the content begins. The kernel finds the blobs either as
// devices of their own, or one after the other behind the image, as one disk.
const (
	blockSize   = 4096
	superOffset = 1024
	superSize   = 128
	magic       = 0xE0F5E1E2
	slotSize    = 32
	inodeSize   = 64
	direntSize  = 12
	inlineMax   = 2048
	chunkSize   = 8
	deviceSize  = 128 // of an entry of the table of blobs

	blockBits     = 12
	blobBlockBits = 9

	inodeExtended = 1 // bit 0 of i_format
	layoutPlain   = 0 // bits 1–3 of i_format
	layoutInline  = 2
	layoutChunks  = 4
	chunkIndexes  = 0x20 // of a chunk's format; the bits below are its size

	hasChunks  = 0x4 // of s_feature_incompat
	hasDevices = 0x8
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
	inline bool
	xattrs []byte // as they are stored
}

// indexed reports whether the inode's content is in a blob.
func (i *inode) indexed() bool { return i.blob > 0 && i.size > 0 }

// behind returns how many bytes follow the inode in the meta blocks, the gap before a chunk's
// index included.
func (i *inode) behind() int64 {
	n := int64(len(i.xattrs))
	switch {
	case i.indexed():
		n = (n+chunkSize-1)/chunkSize*chunkSize + chunkSize
	case i.inline:
		n += i.size
	}
	return n
}

type layout struct {
	bits   uint8 // of the block size
	blobs  []Blob
	inodes []*inode // in path order, root first
	of     map[*node]*inode
	meta   uint32 // first meta block
	blocks uint32 // of the whole image
}

func (l *layout) block() int64 { return 1 << l.bits }

// up rounds n up to whole blocks.
func (l *layout) up(n int64) int64 { return (n + l.block() - 1) >> l.bits << l.bits }

// head returns the size of what comes before all content.
func (l *layout) head() int64 {
	return l.up(superOffset + superSize + int64(len(l.blobs))*deviceSize)
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
	if err := f.Truncate(int64(l.blocks) << l.bits); err != nil {
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
	l := &layout{bits: blockBits, blobs: t.blobs, of: map[*node]*inode{}}
	if len(t.blobs) > 0 {
		l.bits = blobBlockBits
	}
	root := l.add(t.root, nil)
	root.parent = root
	l.addBelow(root)
	block, at := uint32(l.head()>>l.bits), int64(0)
	for _, i := range l.inodes {
		whole := inodeSize + int64(len(i.xattrs)) + i.size
		i.inline = !i.indexed() && i.size <= inlineMax && whole <= l.block()
		if !i.inline && !i.indexed() {
			i.block = block
			block += uint32(l.up(i.size) >> l.bits)
		}
		need := inodeSize + i.behind()
		if at%l.block()+need > l.block() { // an inode and its inline content share a block
			at = l.up(at)
		}
		i.nid = uint64(at / slotSize)
		at += (need + slotSize - 1) / slotSize * slotSize
	}
	l.meta = block
	l.blocks = block + uint32(l.up(at)>>l.bits)
	whole := uint32(blockSize >> l.bits) // a disk that begins with the image goes on in whole pages
	l.blocks = (l.blocks + whole - 1) / whole * whole
	return l
}

// addBelow adds what is below a directory, in path order.
func (l *layout) addBelow(dir *inode) {
	for _, name := range names(dir.node) {
		n := dir.children[name]
		if l.of[n] != nil {
			continue
		}
		if i := l.add(n, dir); n.children != nil {
			l.addBelow(i)
		}
	}
}

func (l *layout) add(n *node, parent *inode) *inode {
	i := &inode{node: n, parent: parent, number: uint32(len(l.inodes) + 1),
		xattrs: encodeXattrs(n.xattrs)}
	switch {
	case n.children != nil:
		i.size = l.dirSize(n)
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
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, l.head()), 1<<20)
	for _, i := range l.inodes {
		if i.inline || i.indexed() {
			continue
		}
		if _, err := io.Copy(w, t.stored(l, i)); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, l.up(i.size)-i.size)); err != nil {
			return err
		}
	}
	return w.Flush()
}

// writeMeta writes the inodes and what follows them, which ascend through the meta blocks.
func (t *Tree) writeMeta(f *os.File, l *layout) error {
	start := int64(l.meta) << l.bits
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, start), 1<<20)
	at, end := int64(0), int64(l.blocks)<<l.bits-start
	var zeros [2 * blockSize]byte // at most what fills up a block and a page
	var err error
	write := func(b []byte) {
		if err == nil {
			_, err = w.Write(b)
			at += int64(len(b))
		}
	}
	for _, i := range l.inodes {
		place := int64(i.nid) * slotSize
		write(zeros[:place-at])
		var b [inodeSize]byte
		l.encode(b[:], i)
		write(b[:])
		write(i.xattrs)
		switch {
		case i.indexed():
			var chunk [chunkSize]byte
			binary.LittleEndian.PutUint16(chunk[2:], i.blob)
			binary.LittleEndian.PutUint32(chunk[4:], uint32(i.off>>l.bits))
			write(zeros[:place+inodeSize+i.behind()-chunkSize-at])
			write(chunk[:])
		case i.inline && i.size > 0 && err == nil:
			var n int64
			n, err = io.Copy(w, t.stored(l, i))
			if at += n; err == nil && n != i.size {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			return err
		}
	}
	write(zeros[:end-at])
	if err != nil {
		return err
	}
	return w.Flush()
}

// encode writes struct erofs_inode_extended.
func (l *layout) encode(b []byte, i *inode) {
	le := binary.LittleEndian
	format, place := uint16(layoutPlain), i.block
	switch {
	case i.indexed():
		// the content is one chunk
		format = layoutChunks
		place = chunkIndexes | uint32(bits.Len64(uint64(l.up(i.size)>>l.bits)-1))
	case i.inline:
		format = layoutInline
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
	le.PutUint16(b[0:], inodeExtended|format<<1)
	if len(i.xattrs) > 0 {
		le.PutUint16(b[2:], uint16((len(i.xattrs)-xattrHead)/xattrUnit+1))
	}
	le.PutUint16(b[4:], uint16(i.mode))
	le.PutUint64(b[8:], uint64(i.size))
	le.PutUint32(b[16:], place)
	le.PutUint32(b[20:], i.number)
	le.PutUint32(b[24:], i.uid)
	le.PutUint32(b[28:], i.gid)
	le.PutUint64(b[32:], uint64(i.sec))
	le.PutUint32(b[40:], i.nsec)
	le.PutUint32(b[44:], links)
}

// super returns struct erofs_super_block and the table of blobs.
func (l *layout) super() []byte {
	le, b := binary.LittleEndian, make([]byte, superSize+len(l.blobs)*deviceSize)
	le.PutUint32(b[0:], magic)
	b[12] = l.bits
	le.PutUint16(b[14:], uint16(l.inodes[0].nid))
	le.PutUint64(b[16:], uint64(len(l.inodes)))
	le.PutUint32(b[36:], l.blocks)
	le.PutUint32(b[40:], l.meta)
	copy(b[48:64], imageID[:])
	if len(l.blobs) == 0 {
		return b
	}
	le.PutUint32(b[80:], hasChunks|hasDevices)
	le.PutUint16(b[86:], uint16(len(l.blobs)))
	le.PutUint16(b[88:], (superOffset+superSize)/deviceSize)
	at := l.blocks
	for n, blob := range l.blobs {
		device := b[superSize+n*deviceSize:]
		blocks := uint32(l.up(blob.Bytes) >> l.bits)
		le.PutUint32(device[64:], blocks)
		le.PutUint32(device[68:], at) // as one disk
		at += blocks
	}
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
	case super[12] != blockBits && super[12] != blobBlockBits:
		return fmt.Errorf("its blocks have 2^%d bytes", super[12])
	}
	if want := int64(le.Uint32(super[36:])) << super[12]; info.Size() != want {
		return fmt.Errorf("it has %d bytes and should have %d", info.Size(), want)
	}
	return nil
}
