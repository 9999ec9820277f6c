package rootfs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// An Xattr is an extended attribute of a file.
type Xattr struct{ Name, Value string }

// Attributes follow their inode: a head, then entries that begin at multiples of xattrUnit.
const (
	xattrHead  = 12
	xattrUnit  = 4
	maxXattrs  = 64 << 10 // bytes of one file's attributes, as Linux bounds a list of them
	paxXattr   = "SCHILY.xattr."
	xattrEntry = 4 // bytes before a name
)

// prefixes are the name spaces that the format knows, by number. Those of the access lists are
// whole names.
var prefixes = map[string]byte{
	"user.": 1, "system.posix_acl_access": 2, "system.posix_acl_default": 3, "trusted.": 4,
	"security.": 6,
}

// split returns the number of an attribute's name space, and the rest of its name.
func (x Xattr) split() (space byte, rest string, known bool) {
	for prefix, space := range prefixes {
		if rest, is := strings.CutPrefix(x.Name, prefix); is &&
			(rest == "") != strings.HasSuffix(prefix, ".") {
			return space, rest, true
		}
	}
	return 0, "", false
}

// storable reports whether a file can have the attributes.
func storable(list []Xattr) bool {
	size := xattrHead
	for _, x := range list {
		_, rest, known := x.split()
		size += xattrEntry + len(rest) + len(x.Value) + xattrUnit
		if !known || len(rest) > 255 || size > maxXattrs {
			return false
		}
	}
	return true
}

// xattrsOf returns the attributes that an archive states for a file, sorted. Those that root alone
// may set, and those of the overlay, which are the kernel's own words, no archive may say.
func xattrsOf(name string, records map[string]string) ([]Xattr, error) {
	var list []Xattr
	for key, value := range records {
		attribute, is := strings.CutPrefix(key, paxXattr)
		x := Xattr{attribute, value}
		_, _, known := x.split()
		if is && known && !strings.HasPrefix(attribute, "trusted.") &&
			!strings.HasPrefix(attribute, "user.overlay.") {
			list = append(list, x)
		}
	}
	if !storable(list) {
		return nil, fmt.Errorf("%s: %w: its extended attributes", name, ErrTooLarge)
	}
	slices.SortFunc(list, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// joined returns the attributes of a file whose owner is set once more, and then new attributes: as
// the kernel has it, the new owner does not inherit capabilities.
func joined(old, new []Xattr) []Xattr {
	list := slices.Clone(new)
	for _, x := range old {
		said := slices.ContainsFunc(new, func(n Xattr) bool { return n.Name == x.Name })
		if x.Name != "security.capability" && !said {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// encodeXattrs returns the attributes as they are stored behind an inode.
func encodeXattrs(list []Xattr) []byte {
	if len(list) == 0 {
		return nil
	}
	b := make([]byte, xattrHead)
	for _, x := range list {
		space, rest, _ := x.split()
		b = append(b, byte(len(rest)), space)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(x.Value)))
		b = append(append(b, rest...), x.Value...)
		b = append(b, make([]byte, -len(b)&(xattrUnit-1))...)
	}
	return b
}
