package jail

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A house is the read-only file system that all rooms share: programs, their libraries and their
// data, each mounted at its path below the host's root or another directory that stands for "/",
// and a /proc in which a process sees only itself. It is a mount namespace without a process; a
// room is a copy of it.
type house struct{ mounts *os.File }

// vfDir is a directory in a jail room. It contains a directory of the VF, named as in the host's
// sysfs.
const vfDir = "/dev/pci"

func newHouse(root string, paths []string) (h house, err error) {
	parts, err := partsOf(root, paths)
	if err != nil {
		return h, err
	}
	err = apart(func(spaces int) (err error) {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := build(root, parts); err != nil {
			return err
		}
		h.mounts, err = openSpace(spaces, "mnt")
		return err
	})
	if err != nil {
		return h, fmt.Errorf("root file system of VMMs: %w", err)
	}
	return h, nil
}

// apart runs f on a new thread, which ends with f. spaces is the directory of that thread's
// namespaces.
func apart(f func(spaces int) error) error {
	failed := make(chan error)
	go func() {
		// never unlocked, because the thread cannot be used for anything else
		runtime.LockOSThread()
		// The first thread cannot end, and /proc shows it as the process: keep it and take another
		// one.
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			failed <- apart(f)
			return
		}
		spaces, err := unix.Open("/proc/thread-self/ns",
			unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			failed <- os.NewSyscallError("open /proc/thread-self/ns", err)
			return
		}
		defer unix.Close(spaces)
		failed <- f(spaces)
	}()
	return <-failed
}

func openSpace(spaces int, name string) (*os.File, error) {
	fd, err := unix.Openat(spaces, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open namespace "+name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// build turns the thread's mount namespace into the house: the parts of root on a tmpfs, which
// becomes the root, and nothing else of the host.
func build(root string, parts []string) error {
	const site = "/sys" // a directory that every host has and that contains no part
	var todo script
	todo.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	todo.mount("tmpfs", site, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		"mode=0755,size=1m,nr_inodes=4k")
	for _, dir := range []string{"/dev", "/proc"} {
		todo.do("", func() error { return os.Mkdir(site+dir, 0o755) })
	}
	todo.mount("proc", site+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"hidepid=ptraceable,subset=pid")
	for _, part := range parts {
		from := filepath.Join(root, part)
		todo.do("", func() error { return point(from, site+part) })
		todo.mount(from, site+part, "", unix.MS_BIND, "")
	}
	todo.do("chdir", func() error { return unix.Chdir(site) })
	todo.do("pivot_root", func() error { return unix.PivotRoot(".", ".") })
	todo.do("umount", func() error { return unix.Unmount(".", unix.MNT_DETACH) })
	todo.do("mount_setattr", func() error {
		return unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE,
			&unix.MountAttr{
				Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
			})
	})
	return todo.failed
}

// point makes the mount point of a part.
func point(part, at string) error {
	info, err := os.Stat(part)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// A script is a sequence of steps. After the first failure it does no more steps: they could hit
// another root than the one they are meant for.
type script struct{ failed error }

// do does a step. call is the name of the step's system call, or "".
func (s *script) do(call string, step func() error) {
	if s.failed != nil {
		return
	}
	if s.failed = step(); call != "" {
		s.failed = os.NewSyscallError(call, s.failed)
	}
}

func (s *script) mount(source, target, kind string, flags uintptr, options string) {
	s.do("", func() error {
		if err := unix.Mount(source, target, kind, flags, options); err != nil {
			return &os.PathError{Op: "mount", Path: target, Err: err}
		}
		return nil
	})
}

// libraryCache is the file by which the loader finds libraries outside its own directories.
const libraryCache = "/etc/ld.so.cache"

// libraryPath matches the path in a line of the dynamic loader's output.
var libraryPath = regexp.MustCompile(`(?m)(?:=> |^\s)(/\S+) \(0x`)

// resolve returns a path below root with its symbolic links resolved. The links of a prefix do not
// lead out of it.
func resolve(root, path string) (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(root, path))
	if err != nil {
		return "", err
	}
	below, err := filepath.Rel(root, real)
	if err != nil || !filepath.IsLocal(below) {
		return "", fmt.Errorf("%s leads out of %s", path, root)
	}
	return filepath.Join("/", below), nil
}

// partsOf returns the paths, with symbolic links resolved, and the files that the programs among
// them load. All paths are below root.
func partsOf(root string, paths []string) (parts []string, err error) {
	seen := map[string]bool{}
	add := func(path string) {
		if !seen[path] {
			seen[path] = true
			parts = append(parts, path)
		}
	}
	for _, given := range paths {
		path, err := resolve(root, given)
		if err != nil {
			return nil, err
		}
		add(path)
		add(given) // under the name by which the program asks for it
		loader, err := loaderOf(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		if loader == "" {
			continue
		}
		add(loader)
		if _, err := os.Stat(filepath.Join(root, libraryCache)); err == nil {
			add(libraryCache)
		}
		libraries, err := librariesOf(root, path, loader)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			add(library)
		}
	}
	return parts, nil
}

// librariesOf returns the libraries that the loader finds for the program in root with an empty
// environment, as in a room.
func librariesOf(root, program, loader string) (paths []string, err error) {
	cmd := exec.Command(loader, "--list", program)
	cmd.Env = []string{}
	if root != "/" {
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	}
	said, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("libraries of %s: %w: %s", program, err, bytes.TrimSpace(said))
	}
	for _, found := range libraryPath.FindAllSubmatch(said, -1) {
		paths = append(paths, string(found[1]))
	}
	return paths, nil
}

// loaderOf returns the dynamic loader that a program asks for, or "" if the file is not a program
// or needs no loader.
func loaderOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", nil // the file is data
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(p.Open())
			return string(bytes.TrimRight(name, "\x00")), err
		}
	}
	return "", nil
}
