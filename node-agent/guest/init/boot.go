package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

type filesystem struct {
	kind, at, options string
	flags             uintptr
}

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountKernel mounts what the kernel offers, in the initrd; enterRoot moves it along.
func mountKernel() error {
	err := mount([]filesystem{
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
		{"proc", "/proc", "", safe},
		{"sysfs", "/sys", "", safe},
	})
	if err != nil {
		return err
	}
	// A panic ends the machine at once.
	return os.WriteFile("/proc/sys/kernel/panic", []byte("-1"), 0)
}

// enterRoot makes the root image under a writable tmpfs the root directory. The image is a disk, or
// a region of memory: then its files are mapped where they lie, not copied.
func enterRoot(root string) error {
	device, options := "/dev/vda", ""
	if root == wire.Region {
		device, options = root, "dax=always"
	}
	if err := waitFor(device, 10*time.Second); err != nil {
		return fmt.Errorf("the root image's block device does not appear: %w", err)
	}
	if err := mount([]filesystem{{"tmpfs", "/mnt", "mode=0755", unix.MS_NODEV}}); err != nil {
		return err
	}
	for _, dir := range []string{"/mnt/image", "/mnt/upper", "/mnt/work", "/mnt/root"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(device, "/mnt/image", "erofs", unix.MS_RDONLY, options); err != nil {
		return fmt.Errorf("the root image does not mount as erofs: %w", err)
	}
	if err := mount([]filesystem{{"overlay", "/mnt/root",
		"lowerdir=/mnt/image,upperdir=/mnt/upper,workdir=/mnt/work", 0}}); err != nil {
		return err
	}
	return switchRoot("/mnt/root")
}

// switchRoot moves the kernel's file systems into root, makes it /, and mounts the file systems
// that a runtime expects of a machine.
func switchRoot(root string) error {
	for _, at := range []string{"/dev", "/proc", "/sys"} {
		if err := os.MkdirAll(root+at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(at, root+at, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("%s does not move into the root image: %w", at, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("the root image does not become the root directory: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return err
	}
	for link, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1",
		"stderr": "/2"} {
		os.Symlink("/proc/self/fd"+target, "/dev/"+link)
	}
	return mount([]filesystem{
		{"devpts", "/dev/pts", "mode=0620,gid=5,ptmxmode=0666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", "/sys/fs/cgroup", "", safe},
	})
}

// mount mounts in order and makes the directories. It leaves the mounts of the kernel as they are.
func mount(all []filesystem) error {
	for _, f := range all {
		os.MkdirAll(f.at, 0o755)
		if err := unix.Mount(f.kind, f.at, f.kind, f.flags, f.options); err != nil &&
			err != unix.EBUSY {
			return fmt.Errorf("%s does not mount at %s: %w", f.kind, f.at, err)
		}
	}
	return nil
}

// waitFor returns when path exists. The kernel's announcements of devices say when to look.
func waitFor(path string, within time.Duration) error {
	uevents, err := listenUevents()
	if err != nil {
		return err
	}
	defer uevents.close()
	for deadline := time.Now().Add(within); ; {
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		if _, err := uevents.receive(deadline); err != nil {
			return fmt.Errorf("%s after %v: %w", path, within, err)
		}
	}
}

// powerOff ends the machine. Without ACPI the kernel would halt for ever. Then powerOff resets it,
// which ends a VMM that was started with no-reboot.
func powerOff() {
	unix.Sync()
	how := unix.LINUX_REBOOT_CMD_POWER_OFF
	if _, err := os.Stat("/sys/firmware/acpi"); err != nil {
		how = unix.LINUX_REBOOT_CMD_RESTART
	}
	unix.Reboot(how)
	select {}
}
