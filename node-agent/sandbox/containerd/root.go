package containerd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// roots are the images that are mounted, each once: so all sandboxes of an image share its pages. A
// sandbox's overlay keeps its image in use, whether it is still mounted here or not. An image that
// has been evicted is unmounted when the next one is mounted; until then it takes its room.
type roots struct {
	dir  string
	mu   sync.Mutex
	open map[string]string // where an image is mounted
}

func openRoots(dir string) (*roots, error) {
	r := &roots{dir: dir, open: map[string]string{}}
	r.close() // of an agent that was killed
	return r, os.MkdirAll(dir, 0o700)
}

// close unmounts all images.
func (r *roots) close() { unmountAll(r.dir) }

// unmountAll takes away all that is mounted in a directory, and the directory.
func unmountAll(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		unmount(filepath.Join(dir, entry.Name()))
	}
	_ = os.Remove(dir)
}

// mounted returns where the image is mounted, whose contents may be in layers.
func (r *roots) mounted(image string, layers []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, is := r.open[image]; is {
		return at, nil
	}
	for former, at := range r.open {
		if _, err := os.Lstat(former); errors.Is(err, fs.ErrNotExist) {
			unmount(at)
			delete(r.open, former)
		}
	}
	at := filepath.Join(r.dir, fmt.Sprintf("%.8x", sha256.Sum256([]byte(image))))
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", err
	}
	err := rootfs.Mount(at, image, layers...)
	if errors.Is(err, unix.ENOTBLK) { // a kernel that mounts no files, as Debian's
		err = mountByLoops(at, image, layers)
	}
	if err != nil {
		unmount(at)
		return "", fmt.Errorf("image %s: %w; it needs a kernel with EROFS and loop devices"+
			" (modprobe erofs loop), and one that was pulled needs Linux 6.4 or later", image, err)
	}
	r.open[image] = at
	return at, nil
}

// mountByLoops mounts an image by loop devices, which end with the mount.
func mountByLoops(at, image string, layers []string) error {
	var devices []string
	for _, file := range append([]string{image}, layers...) {
		loop, err := mount.SetupLoop(file, mount.LoopParams{Readonly: true, Autoclear: true})
		if err != nil {
			return err
		}
		defer loop.Close()
		devices = append(devices, loop.Name())
	}
	return rootfs.Mount(at, devices[0], devices[1:]...)
}

// writable returns where the tmpfs of the sandbox id is mounted while its root is made.
func (d *Driver) writable(id string) string { return filepath.Join(writableDir(d.Dir), id) }

// root returns the sandbox's root: its image below a tmpfs of half its memory.
func (b *box) root() (root mount.Mount, err error) {
	image, err := b.driver.roots.mounted(b.spec.Root, b.spec.Layers)
	if err != nil {
		return root, err
	}
	at := b.driver.writable(b.spec.ID)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return root, err
	}
	tmpfs := mount.Mount{Type: "tmpfs", Source: "fastiov",
		Options: []string{"nodev", "nosuid", fmt.Sprintf("size=%dm", max(b.spec.MemoryMiB/2, 1))}}
	if err := tmpfs.Mount(at); err != nil {
		return root, fmt.Errorf("tmpfs at %s: %w", at, err)
	}
	upper, work := filepath.Join(at, "upper"), filepath.Join(at, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return root, err
		}
	}
	return mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"nodev", "nosuid",
		"lowerdir=" + option(image), "upperdir=" + option(upper), "workdir=" + option(work),
	}}, nil
}

// option returns a path as overlayfs reads it among its options.
var option = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace

// unmount takes a mount away, and the directory that it was mounted on. Who uses it may go on.
func unmount(at string) {
	for unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		continue
	}
	_ = os.Remove(at)
}
