// Package mounts writes the files that a program is given beside its image.
package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// Write makes the folder dir, which its owner alone may enter, and in it for each mount a folder
// with its files, or the file that it is. It returns where they are. What it writes is in dir,
// whatever names say.
func Write(dir string, all []wire.Mount) (at []string, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, placeless(err)
	}
	inside, err := os.OpenRoot(dir)
	if err != nil {
		return nil, placeless(err)
	}
	defer inside.Close()
	for i, m := range all {
		own := strconv.Itoa(i)
		if err := write(inside, own, m); err != nil {
			return nil, fmt.Errorf("the files for %s: %w", m.Path, err)
		}
		at = append(at, filepath.Join(dir, own))
	}
	return at, nil
}

// placeless returns an error without the path where it was met, which is the host's own: errors
// reach whose program it is.
func placeless(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("the folder of a program's files: %w", err)
}

func write(inside *os.Root, own string, m wire.Mount) error {
	if !m.Alone() {
		if err := folder(inside, own); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		name := path.Join(own, f.Name)
		if err := folder(inside, path.Dir(name)); err != nil {
			return err
		}
		if err := inside.WriteFile(name, f.Data, 0o600); err != nil {
			return err
		}
		if err := inside.Chmod(name, f.Mode); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}

// Renew puts other files into the places of some that Write has written for the same mounts in
// dir. Nobody reads half of one. One that is a mount itself stays: who has it mounted would not see
// another in its place.
func Renew(dir string, all []wire.Mount) error {
	inside, err := os.OpenRoot(dir)
	if err != nil {
		return placeless(err)
	}
	defer inside.Close()
	for i, m := range all {
		for _, f := range m.Files {
			if err := renew(inside, path.Join(strconv.Itoa(i), f.Name), f); err != nil {
				return fmt.Errorf("the file %.80q for %s: %w", f.Name, m.Path, err)
			}
		}
	}
	return nil
}

func renew(inside *os.Root, name string, f wire.File) error {
	if is, err := inside.Lstat(name); err != nil {
		return err
	} else if !is.Mode().IsRegular() || f.Name == "" {
		return errors.New("it is no file in a folder that is mounted")
	}
	const fresh = "new" // beside the mounts, which have numbers
	if err := inside.RemoveAll(fresh); err != nil {
		return err
	}
	if err := inside.WriteFile(fresh, f.Data, 0o600); err != nil {
		return err
	}
	if err := inside.Chmod(fresh, f.Mode); err != nil {
		return err
	}
	return inside.Rename(fresh, name)
}

// folder makes a folder that everybody may read, with those above it.
func folder(inside *os.Root, name string) error {
	if name == "." {
		return nil
	}
	if err := folder(inside, path.Dir(name)); err != nil {
		return err
	}
	if err := inside.Mkdir(name, 0o755); err != nil {
		if os.IsExist(err) {
			return nil
		}
		return err
	}
	return inside.Chmod(name, 0o755)
}
