package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A Set is what a node needs to start sandboxes: the guest and its runtimes. It comes from a cache, which makes and pulls what is asked
// for, or from a directory that another machine exported:
//
//	DIR/guest/kernel, initrd
//	DIR/runtimes/NAME/root.erofs, config.json
type Set struct {
	Guest Boot
	find  func(ctx context.Context, name string) (Runtime, error)
	have  func() []string
	from  *Cache // what is pulled comes from it; nil: nothing is
	dir   string // of a set that was exported
}

// Have lists the runtimes that are here already: finding one of them makes and fetches nothing.
func (s *Set) Have() []string { return s.have() }

// Runtime returns the runtime called name.
func (s *Set) Runtime(ctx context.Context, name string) (Runtime, error) { return s.find(ctx, name) }

// Use returns the runtime called name for the namespace. It is in use until released.
func (s *Set) Use(ctx context.Context, name, namespace string) (r Runtime, release func(), err error) {
	if s.from == nil || !isReference(name) || s.dir != "" && isDir(s.inDir(name)) {
		r, err = s.find(ctx, name)
		return r, func() {}, err
	}
	return s.from.Pull(ctx, name, namespace)
}

func (s *Set) inDir(name string) string { return filepath.Join(s.dir, "runtimes", fileName(name)) }

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Hold takes a root image into use that a former process had, until released.
func (s *Set) Hold(ctx context.Context, root string) (release func(), err error) {
	if s.from == nil {
		return nil, nil
	}
	return s.from.Hold(ctx, root)
}

// Set makes the guest and returns the set of everything the cache can make.
func (c *Cache) Set(ctx context.Context) (*Set, error) {
	guest, err := c.Guest(ctx)
	if err != nil {
		return nil, err
	}
	return &Set{Guest: guest, find: c.Runtime, have: c.runtimes, from: c}, nil
}

// PullTo has images that are not in the set pulled to a cache.
func (s *Set) PullTo(c *Cache) { s.from = c }

// OpenSet opens a set that Export wrote.
func OpenSet(dir string) (*Set, error) {
	s := &Set{dir: dir, Guest: Boot{Kernel: filepath.Join(dir, "guest", kernelName), Initrd: filepath.Join(dir, "guest", initrdName)}}
	for _, file := range []string{s.Guest.Kernel, s.Guest.Initrd} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%s is no set of images: %w; export it anew", dir, err)
		}
	}
	if err := cmp.Or(checkKernel(s.Guest.Kernel), checkInitrd(s.Guest.Initrd)); err != nil {
		return nil, err
	}
	var read sync.Map // by name: a cold start that needs a runtime again asks no disk
	s.find = func(_ context.Context, name string) (Runtime, error) {
		if r, ok := read.Load(name); ok {
			return r.(Runtime), nil
		}
		r, err := readRuntime(s.inDir(name))
		if errors.Is(err, fs.ErrNotExist) {
			have := strings.Join(children(filepath.Join(dir, "runtimes")), ", ")
			return r, fmt.Errorf("no runtime image %s in %s, which has %s; export it there", name, dir, have)
		}
		if err == nil {
			read.Store(name, r)
		}
		return r, err
	}
	s.have = func() []string { // a name cannot be told from its file's, so these are the ones made here and those that were asked for
		names := map[string]bool{}
		for _, name := range RuntimeNames() {
			if _, err := os.Stat(filepath.Join(dir, "runtimes", fileName(name))); err == nil {
				names[name] = true
			}
		}
		read.Range(func(name, _ any) bool { names[name.(string)] = true; return true })
		if s.from != nil {
			for _, ref := range s.from.pulls.pulled() {
				names[ref] = true
			}
		}
		return slices.Sorted(maps.Keys(names))
	}
	return s, nil
}

// Export makes the guest and the named runtimes and writes them to dir as a set, adding to what is there. Files appear there whole.
func (c *Cache) Export(ctx context.Context, dir string, runtimes ...string) error {
	guest, err := c.Guest(ctx)
	if err != nil {
		return err
	}
	if err := place(filepath.Join(dir, "guest"), guest.Kernel, guest.Initrd); err != nil {
		return err
	}
	for _, name := range runtimes {
		r, err := c.Runtime(ctx, name)
		if err != nil {
			return err
		}
		config := filepath.Join(filepath.Dir(r.Root), configName)
		if err := place(filepath.Join(dir, "runtimes", fileName(name)), r.Root, config); err != nil {
			return err
		}
	}
	return nil
}

// place puts files into dir under their own names, by hard link where that can be: an artefact is never written again.
func place(dir string, files ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
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

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
