// Package imagetest compares mounted images file by file.
package imagetest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The time of a directory comes last. A directory whose time containerd takes from no archive is as
// old as its unpacking.
const (
	dirTime  = " @"
	unstated = dirTime + "now"
	recently = 24 * time.Hour
)

// Differ lists how one tree differs from the other.
func Differ(ours, theirs map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if said, now := strings.CutSuffix(theirs[name], unstated); now &&
			strings.HasPrefix(ours[name], said+dirTime) {
			continue
		}
		if ours[name] != theirs[name] {
			fmt.Fprintf(&b, "%s\n  ours       %s\n  containerd %s\n", name, ours[name],
				theirs[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if _, is := theirs[name]; !is {
			fmt.Fprintf(&b, "%s\n  ours       %s\n  containerd has nothing\n", name, ours[name])
		}
	}
	return b.String()
}

// mountPoints are made where an image lacks them.
var mountPoints = []string{"dev", "proc", "sys", "run", "tmp"}

// Inventory describes every file below at: type, mode, owner, size, time, attributes, target,
// content, and which of the names are one file. Times of directories that an archive does not
// state are when somebody unpacked.
func Inventory(t testing.TB, at string) map[string]string {
	t.Helper()
	all, same := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, at+"/")
		if path == at || slices.Contains(mountPoints, name) {
			return nil
		}
		var s unix.Stat_t
		err = unix.Lstat(path, &s)
		if err == unix.ENOENT { // the overlay lists a whiteout that hides nothing
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		say := fmt.Sprintf("%o %d:%d", s.Mode, s.Uid, s.Gid)
		switch s.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			say += " -> " + target
		case syscall.S_IFREG:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			say += fmt.Sprintf(" %d %x", s.Size, sha256.Sum256(content))
			if first, known := same[s.Ino]; known {
				say += " = " + first
			} else {
				same[s.Ino] = name
			}
		}
		changed := fmt.Sprintf("%d.%09d", s.Mtim.Sec, s.Mtim.Nsec)
		switch {
		case s.Mode&syscall.S_IFMT != syscall.S_IFDIR:
			say += " " + changed + xattrsAt(t, path)
		case time.Since(time.Unix(s.Mtim.Unix())) < recently:
			say += xattrsAt(t, path) + unstated
		default:
			say += xattrsAt(t, path) + dirTime + changed
		}
		all[name] = say
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func xattrsAt(t testing.TB, path string) (say string) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		t.Fatal(path, err)
	}
	names := strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	for _, name := range names {
		if strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(path, name, err)
		}
		say += fmt.Sprintf(" %s=%x", name, value[:n])
	}
	return say
}
