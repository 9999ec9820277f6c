package image

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A root image is one file, Root. One that was pulled is names alone: its contents are in Layers,
// the blobs, which it shares with other images. The same files serve three ways, in this order:
//
//	mount -t erofs -o ro,nodev,device=LAYER1,device=LAYER2… ROOT DIR     files, from Linux 6.12
//	mount -t erofs -o ro,nodev,device=/dev/loop1…       /dev/loop0 DIR    as block devices
//	one disk that has ROOT, LAYER1, LAYER2… one after the other           as a microVM sees it
//
// The files are in use, and stay, until whoever got the Runtime releases it. A mount that outlives
// that must be undone first.

// Mount mounts the root image on dir, read-only and without devices.
func (r Runtime) Mount(dir string) error {
	if err := r.mount(dir); err != nil {
		return fmt.Errorf("mount the image %s on %s: %w; the kernel needs "+
			"EROFS_FS_BACKED_BY_FILE", r.Root, dir, err)
	}
	return nil
}

// mount takes the kernel's newer calls, for which any number of layers is few enough.
func (r Runtime) mount(dir string) error {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "source", r.Root), unix.FsconfigSetFlag(fs, "ro"))
	for _, layer := range r.Layers {
		err = errors.Join(err, unix.FsconfigSetString(fs, "device", layer))
	}
	if err := errors.Join(err, unix.FsconfigCreate(fs)); err != nil {
		return err
	}
	const how = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV
	made, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, how)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	return unix.MoveMount(made, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Files returns the image's files in the order in which they make up one disk.
func (r Runtime) Files() []string { return append([]string{r.Root}, r.Layers...) }
