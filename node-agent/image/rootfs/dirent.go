package rootfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"syscall"
)

// The content of a directory is a series of blocks. Each is a table of 12-byte entries followed by
// their names. All names, including "." and "..", ascend through the blocks. The last block ends
// with its last name.

var direntType = map[uint32]byte{
	syscall.S_IFREG: 1, syscall.S_IFDIR: 2, syscall.S_IFIFO: 5, syscall.S_IFLNK: 7,
}

// dirBlocks splits a directory's names into blocks.
func (l *layout) dirBlocks(dir *node) [][]string {
	list := append(names(dir), ".", "..")
	slices.Sort(list)
	var blocks [][]string
	blockSize := int(l.block())
	used := blockSize
	for _, name := range list {
		if used+direntSize+len(name) > blockSize {
			blocks, used = append(blocks, nil), 0
		}
		last := len(blocks) - 1
		blocks[last] = append(blocks[last], name)
		used += direntSize + len(name)
	}
	return blocks
}

func (l *layout) dirSize(dir *node) int64 {
	blocks := l.dirBlocks(dir)
	size := int64(len(blocks)-1) * l.block()
	for _, name := range blocks[len(blocks)-1] {
		size += int64(direntSize + len(name))
	}
	return size
}

// dirents encodes the content of a directory after every inode has its nid.
func (l *layout) dirents(dir *inode) io.Reader {
	var out bytes.Buffer
	for n, block := range l.dirBlocks(dir.node) {
		out.Write(make([]byte, n<<l.bits-out.Len()))
		offset := len(block) * direntSize
		for _, name := range block {
			i := l.entry(dir, name)
			var b [direntSize]byte
			binary.LittleEndian.PutUint64(b[0:], i.nid)
			binary.LittleEndian.PutUint16(b[8:], uint16(offset))
			b[10] = direntType[i.mode&syscall.S_IFMT]
			out.Write(b[:])
			offset += len(name)
		}
		out.WriteString(strings.Join(block, ""))
	}
	return &out
}

func (l *layout) entry(dir *inode, name string) *inode {
	switch name {
	case ".":
		return dir
	case "..":
		return dir.parent
	}
	return l.of[dir.children[name]]
}
