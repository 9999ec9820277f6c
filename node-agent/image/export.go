package image

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Export writes a set to dir, adding to what is there. Files appear there whole. Prefixes of QEMU,
// by their things, are part of a set for machines whose own is not used. To a set that is in use
// files are added, but none is changed: its user would have some of each version.
func Export(
	dir string, guest Boot, qemus map[string]string, runtimes map[string]Runtime,
) error {
	var files exports
	files.add(filepath.Join(dir, "guest"), guest.Kernel, guest.Initrd)
	for _, name := range []string{RegionName, TapName} {
		if further, err := guest.Further(name); err == nil {
			files.add(filepath.Join(dir, "guest"), further)
		}
	}
	for thing, prefix := range qemus {
		if err := files.addAll(filepath.Join(dir, thing), prefix); err != nil {
			return err
		}
	}
	for name, r := range runtimes {
		to, from := filepath.Join(dir, "runtimes", fileName(name)), filepath.Dir(r.Root)
		for _, blob := range r.Layers {
			files.add(filepath.Join(to, filepath.Base(filepath.Dir(blob))), blob)
		}
		files.add(to, r.Root, filepath.Join(from, ConfigName))
		if len(r.Layers) > 0 {
			files.add(to, filepath.Join(from, layersName))
		}
	}
	if err := MakeDir(dir); err != nil {
		return err
	}
	lock, err := lockSet(dir, unix.LOCK_EX)
	if err == nil {
		defer lock.Close()
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		if changed, err := files.changed(); err != nil || changed != "" {
			return cmp.Or(err, fmt.Errorf("%s is in use, and %s would change; export to another "+
				"directory and start the agent with that, or end the agent first", dir, changed))
		}
	}
	for _, f := range files {
		if err := Place(f.dir, f.from); err != nil {
			return err
		}
	}
	return nil
}

// lockSet locks the directory of a set, if its file system can.
func lockSet(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f, how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// exports are the files of a set, and the directories that they go to.
type exports []struct{ from, dir string }

func (e *exports) add(dir string, files ...string) {
	for _, file := range files {
		*e = append(*e, struct{ from, dir string }{file, dir})
	}
}

// addAll adds the files below from.
func (e *exports) addAll(dir, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(from, filepath.Dir(file))
		e.add(filepath.Join(dir, below), file)
		return err
	})
}

// changed returns a file that is there with another content, or "".
func (e exports) changed() (string, error) {
	for _, f := range e {
		to := filepath.Join(f.dir, filepath.Base(f.from))
		there, err := sum(to)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		ours, err2 := sum(f.from)
		if err := errors.Join(err, err2); err != nil || !bytes.Equal(there, ours) {
			return to, err
		}
	}
	return "", nil
}

func sum(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

// Place puts files into dir under their own names, by hard link where that can be: an artefact is
// never written again.
func Place(dir string, files ...string) error {
	if err := MakeDir(dir); err != nil {
		return err
	}
	for _, file := range files {
		to := filepath.Join(dir, filepath.Base(file))
		tmp := to + ".new"
		if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if os.Link(file, tmp) != nil {
			if err := copyFile(tmp, file); err != nil {
				os.Remove(tmp)
				return err
			}
		}
		if err := os.Rename(tmp, to); err != nil {
			return err
		}
		os.Remove(tmp) // renaming a link over another of the same file leaves both
	}
	return nil
}

// MakeDir makes a directory, and those above it that are missing, which everybody may pass whatever
// the umask: each VMM has a user of its own.
func MakeDir(dir string) error {
	var made []string
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, at)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, at := range made {
		if err := os.Chmod(at, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file with its rights, whatever the umask.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close())
}
