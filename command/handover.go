package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The state directory belongs to root and to the invoker. Its owner stays root, its group is the
// invoker's, and it is sticky. So the invoker makes files in it and can neither remove nor replace
// those of root, which are the reports of the agent and the key. Root can thus go on using these
// names, whatever the invoker becomes.
const sharedMode = unix.S_ISVTX | 0o770

// A file system of its own has a lost+found, which is root's.
var (
	ofRoot    = []string{"reports", "key", "lost+found"}
	ofInvoker = []string{"invoker.db", "tls-cert.pem", "tls-key.pem", "promises.key", "tokens.key",
		"storage"}
)

// handOver gives an invoker that runs as another user its part of the state directory, once: while
// the directory belongs to root alone. It does not go through a directory that has been handed
// over, for the invoker may have put anything there.
func handOver(dir string, to account) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the state directory %s: %w", dir, err)
	}
	top := os.NewFile(uintptr(fd), dir)
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	shared := int(st.Gid) == to.gid && st.Mode&0o7777 == sharedMode
	switch {
	case st.Uid != 0:
		return fmt.Errorf("the state directory %s belongs to user %d, not to root;"+
			" chown it, or name another with --state-dir", dir, st.Uid)
	case !shared && st.Mode&0o022 != 0:
		return fmt.Errorf("others than root may write to the state directory %s;"+
			" chmod 700 it, or name another with --state-dir", dir)
	}
	if err := errors.Join(keepReports(top), keepKey(top, to)); err != nil || shared {
		return err
	}
	if err := giveAll(top, to); err != nil {
		return err
	}
	if err := unix.Fchown(fd, 0, to.gid); err != nil {
		return err
	}
	return unix.Fchmod(fd, sharedMode)
}

// keepReports makes the directory of reports as root's before any other user could make one.
func keepReports(top *os.File) error {
	fd := int(top.Fd())
	if err := unix.Mkdirat(fd, "reports", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s/reports: %w", top.Name(), err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "reports", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s/reports: %w", top.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 {
		return fmt.Errorf("%s/reports is no directory of root's; remove it", top.Name())
	}
	return nil
}

// keepKey has the invoker read the key, if there is one, and leaves it root's.
func keepKey(top *os.File, to account) error {
	err := onEntry(top, "key", func(fd int, st *unix.Stat_t) error {
		if st.Uid != 0 {
			return fmt.Errorf("it belongs to user %d, not to root; remove it to have one made",
				st.Uid)
		}
		return errors.Join(unix.Fchown(fd, 0, to.gid), unix.Fchmod(fd, 0o640))
	})
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%s/key: %w", top.Name(), err)
}

// becomeOwner has this process, if it is root's, go on as the invoker's user once the state
// directory has been handed over. Root must not open files that the invoker put there, or may put
// there any time.
func becomeOwner(dir string) error {
	var top, st unix.Stat_t
	db := filepath.Join(dir, "invoker.db")
	if os.Geteuid() != 0 || unix.Lstat(dir, &top) != nil || top.Mode&0o7777 != sharedMode {
		return nil
	}
	err := unix.Lstat(db, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf(
			"there is no store %s: `fastiov up` makes it; or name another with --store", db)
	case err != nil:
		return fmt.Errorf("%s: %w", db, err)
	case st.Uid == 0:
		return fmt.Errorf("%s is root's; chown it to the user that the invoker runs as", db)
	}
	err = errors.Join(syscall.Setgroups(nil), syscall.Setgid(int(top.Gid)),
		syscall.Setuid(int(st.Uid)))
	if err != nil {
		return fmt.Errorf("becoming the user of %s: %w", db, err)
	}
	return nil
}

// isOfInvoker reports, by its name, whether a file is the invoker's. A name with a number is a
// promises.key or a tokens.key that a crash left half made.
func isOfInvoker(name string) bool {
	return slices.Contains(ofInvoker, name) || strings.HasPrefix(name, "promises.key.") ||
		strings.HasPrefix(name, "tokens.key.")
}

// giveAll gives the invoker the files in the directory that it made while it was root. It is for a
// directory of its own: if anything else lies there, it touches nothing.
func giveAll(top *os.File, to account) error {
	names, err := top.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.Contains(ofRoot, name) && !isOfInvoker(name) {
			return fmt.Errorf("the state directory %s holds %s, which is not fastiov's;"+
				" move that away, or name a directory of its own with --state-dir",
				top.Name(), name)
		}
	}
	for _, name := range names {
		if slices.Contains(ofRoot, name) {
			continue
		}
		if err := give(top, name, to); err != nil {
			return fmt.Errorf("handing %s/%s to user %s: %w", top.Name(), name, to.name, err)
		}
	}
	return nil
}

// give gives away a file, or a directory with all that is below it; the directory itself comes
// last.
func give(parent *os.File, name string, to account) error {
	return onEntry(parent, name, func(fd int, st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return err
			}
			dir := os.NewFile(uintptr(dup), name)
			defer dir.Close()
			names, err := dir.Readdirnames(-1)
			for _, below := range names {
				err = errors.Join(err, give(dir, below, to))
			}
			if err != nil {
				return err
			}
		}
		return unix.Fchown(fd, to.uid, to.gid)
	})
}

// onEntry opens a file or directory and calls do on what it has opened, never on what its name
// leads to. It refuses a symbolic link, a device and a file with a second name: each may belong to
// another user.
func onEntry(parent *os.File, name string, do func(fd int, st *unix.Stat_t) error) error {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(int(parent.Fd()), name, flags, 0)
	if errors.Is(err, unix.ELOOP) {
		return errors.New("it is a symbolic link; remove it")
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return errors.New("it is neither a file nor a directory; remove it")
	case kind == unix.S_IFREG && st.Nlink > 1:
		return errors.New("it has a second name, as another's file would; remove it, or copy it")
	}
	return do(fd, &st)
}
