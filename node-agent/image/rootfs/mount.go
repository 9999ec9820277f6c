package rootfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Mount mounts a root image on dir, read-only and without devices. An image that was pulled is
// names alone, and has its contents in layers, which it may share with other images. All are files,
// from Linux 6.12, or block devices.
//
// It takes the kernel's newer calls, in which any number of layers finds room.
func Mount(dir, image string, layers ...string) error {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "source", image), unix.FsconfigSetFlag(fs, "ro"))
	for _, layer := range layers {
		err = errors.Join(err, unix.FsconfigSetString(fs, "device", layer))
	}
	if err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	const how = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	made, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, how)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	return unix.MoveMount(made, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
