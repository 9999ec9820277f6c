package rootfs

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// An Entry holds what a layer's archive says of one file, and where in the archive its content is.
type Entry struct {
	Name, Link string // Link is the target of a symbolic link, or the other name of a hard one
	Type       byte   // as in archive/tar
	Mode       uint32 // permissions
	UID, GID   uint32
	Sec        int64 // last changed
	Nsec       uint32
	Xattrs     []Xattr
	Size, At   int64 // of the content
}

func entryOf(h *tar.Header) (*Entry, error) {
	xattrs, err := xattrsOf(h.Name, h.PAXRecords)
	if err != nil {
		return nil, err
	}
	switch h.Typeflag {
	case tar.TypeSymlink, tar.TypeFifo: // the kernel keeps users' attributes of others alone
		xattrs = slices.DeleteFunc(xattrs, func(x Xattr) bool {
			return strings.HasPrefix(x.Name, "user.")
		})
	}
	e := &Entry{Name: h.Name, Link: h.Linkname, Type: h.Typeflag, Mode: uint32(h.Mode & 0o7777),
		UID: uint32(h.Uid), GID: uint32(h.Gid), Xattrs: xattrs, Size: h.Size}
	if h.ModTime.Unix() > 0 { // nothing is older than the system's clock
		e.Sec, e.Nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	}
	return e, nil
}

// An Archive is read once from its beginning, knows how far it was read, and skips by Seek.
type Archive interface {
	io.ReadSeeker
	// Spill adds what fill writes behind the archive's end, and returns where that begins.
	Spill(fill func(io.Writer) error) (at int64, err error)
}

// Limits bound what an archive may bring.
type Limits struct{ Bytes, Names, Naming int64 }

// Scan writes the index of a layer. The contents of sparse files are not in an archive as a reader
// sees them: they are spilled.
func Scan(archive Archive, most Limits, index io.Writer) (names int, err error) {
	w := bufio.NewWriterSize(index, 256<<10)
	var naming, spilled int64
	err = eachEntry(archive, func(h *tar.Header, content io.Reader) error {
		e, err := entryOf(h)
		if err != nil {
			return err
		}
		if e.At, err = archive.Seek(0, io.SeekCurrent); err != nil {
			return err
		}
		sparse := h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" ||
			h.PAXRecords["GNU.sparse.map"] != ""
		end := e.At + e.Size
		if sparse {
			spilled += e.Size
			end = e.At + spilled
		}
		naming += int64(len(e.Name) + len(e.Link))
		for _, x := range e.Xattrs {
			naming += int64(len(x.Name) + len(x.Value))
		}
		names++
		switch {
		case end > most.Bytes || end < 0:
			return fmt.Errorf("%s: %w: the contents exceed %d MB", e.Name, ErrTooLarge,
				most.Bytes>>20)
		case int64(names) > most.Names:
			return fmt.Errorf("%s: %w: more than %d names", e.Name, ErrTooLarge, most.Names)
		case naming > most.Naming:
			return fmt.Errorf("%s: %w: names of more than %d MB", e.Name, ErrTooLarge,
				most.Naming>>20)
		}
		if sparse {
			e.Type = tar.TypeReg
			e.At, err = archive.Spill(func(w io.Writer) error {
				_, err := io.Copy(w, content)
				return err
			})
			if err != nil {
				return err
			}
		}
		_, err = w.Write(e.append(nil))
		return err
	})
	if err != nil {
		return names, err
	}
	return names, w.Flush()
}

// append adds the entry's bytes: a length, then numbers and strings in the order of the fields.
func (e *Entry) append(b []byte) []byte {
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	text(e.Name)
	text(e.Link)
	for _, n := range []uint64{uint64(e.Type), uint64(e.Mode), uint64(e.UID), uint64(e.GID),
		uint64(e.Sec), uint64(e.Nsec), uint64(e.Size), uint64(e.At), uint64(len(e.Xattrs))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, x := range e.Xattrs {
		text(x.Name)
		text(x.Value)
	}
	return slices.Concat(binary.AppendUvarint(nil, uint64(len(b))), b)
}

var errIndex = errors.New("this is no index of a layer")

const maxEntry = 1 << 20 // names, a target, and attributes

// ReadIndex calls f with the entries of an index.
func ReadIndex(index io.Reader, f func(*Entry) error) error {
	r := bufio.NewReaderSize(index, 256<<10)
	for {
		length, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return nil
		}
		if err != nil || length > maxEntry {
			return errIndex
		}
		b := make([]byte, length)
		if _, err := io.ReadFull(r, b); err != nil {
			return errIndex
		}
		e, err := decodeEntry(b)
		if err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

func decodeEntry(b []byte) (*Entry, error) {
	bad := false
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() string {
		n := number()
		if bad || n > uint64(len(b)) {
			bad = true
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	e := &Entry{Name: text(), Link: text(), Type: byte(number()), Mode: uint32(number()),
		UID: uint32(number()), GID: uint32(number()), Sec: int64(number()),
		Nsec: uint32(number()), Size: int64(number()), At: int64(number())}
	for n := number(); n > 0 && !bad; n-- {
		e.Xattrs = append(e.Xattrs, Xattr{text(), text()})
	}
	if bad || len(b) > 0 {
		return nil, errIndex
	}
	return e, nil
}

// A Blob has the contents of an indexed layer.
type Blob struct {
	io.ReaderAt
	Bytes int64
}

// Overlay puts an indexed layer over the tree.
func (t *Tree) Overlay(index io.Reader, contents Blob) error {
	t.blobs = append(t.blobs, contents)
	bytes := contents.Bytes
	blob, mine := uint16(len(t.blobs)), map[*node]bool{}
	return ReadIndex(index, func(e *Entry) error {
		if e.Size < 0 || e.At < 0 || e.Size > bytes || e.At > bytes-e.Size ||
			e.At%(1<<blobBlockBits) != 0 && e.Size > 0 {
			return fmt.Errorf("%s: %w: its content is not in the blob", e.Name, errIndex)
		}
		if !storable(e.Xattrs) {
			return fmt.Errorf("%s: %w: its extended attributes", e.Name, errIndex)
		}
		return t.overlay(e, blob, nil, mine)
	})
}
