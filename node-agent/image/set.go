package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// The files of a machine that boots, and of a runtime.
const (
	KernelName = "kernel"
	InitrdName = "initrd"
	RegionName = "region" // more of an initrd, for a root in a region of memory
	TapName    = "tap"    // more of an initrd, for a NIC other than a VF
	RootName   = "root.erofs"
	ConfigName = "config.json"
)

// A Boot holds the files that a machine boots from.
type Boot struct {
	Kernel, Initrd string
	Root           string // empty where the root is chosen later
}

// Further returns the file of that name, which the initrd lacks. Without it, the kernel cannot have
// what the file is for.
func (b Boot) Further(name string) (file string, err error) {
	file = filepath.Join(filepath.Dir(b.Initrd), name)
	_, err = os.Stat(file)
	return file, err
}

// BootIn returns the kernel and the initrd in dir.
func BootIn(dir string) Boot {
	return Boot{Kernel: filepath.Join(dir, KernelName), Initrd: filepath.Join(dir, InitrdName)}
}

// The kernels that a guest can have.
const (
	DebianKernel = "debian"
	LeanKernel   = "lean" // fastiov's own, compiled when it is first asked for
)

// GuestKernels lists the kernels that a guest can have; the first is the default.
func GuestKernels() []string { return []string{DebianKernel, LeanKernel} }

// GuestOf returns what a builder calls the guest with that kernel.
func GuestOf(kernel string) string {
	if kernel == DebianKernel {
		return "guest"
	}
	return "guest-" + kernel
}

// Release returns the release of the kernel, as uname says it, or "" if its file does not.
func (b Boot) Release() string {
	content, err := os.ReadFile(b.Kernel)
	if err != nil {
		return ""
	}
	const before = "Linux version "
	for {
		_, rest, found := bytes.Cut(content, []byte(before))
		if !found {
			return ""
		}
		word, _, _ := bytes.Cut(rest, []byte(" "))
		if len(word) > 0 && len(word) < 65 && word[0] >= '0' && word[0] <= '9' {
			return string(word)
		}
		content = rest
	}
}

// A Runtime is the root image of a function runtime and how it is started.
type Runtime struct {
	Root   string         `json:"-"` // path of the EROFS image
	Layers []string       `json:"-"` // paths of the blobs that the image indexes, if it does
	Pull   *timeline.Pull `json:"-"` // that brought it for whoever asked; nil: it was here
	wire.Program
}

// RuntimeIn reads the runtime in dir.
func RuntimeIn(dir string) (Runtime, error) {
	b, err := os.ReadFile(filepath.Join(dir, ConfigName))
	if err != nil {
		return Runtime{}, err
	}
	r := Runtime{Root: filepath.Join(dir, RootName)}
	if err := json.Unmarshal(b, &r); err != nil {
		return Runtime{}, fmt.Errorf("%s: %w; remove %s to have it made anew", ConfigName, err, dir)
	}
	layers, err := layersOf(dir)
	if err != nil {
		return Runtime{}, err
	}
	for _, name := range layers {
		blob := filepath.Join(dir, name, oci.BlobName) // as Export puts it
		if _, err := os.Stat(blob); err != nil {
			blob = filepath.Join(filepath.Dir(dir), name, oci.BlobName)
		}
		r.Layers = append(r.Layers, blob)
	}
	return r, checkRoot(r.Root)
}

// Made lists the runtimes that a builder makes. Any other name is an OCI reference.
func Made() []string { return []string{"nodejs:18", "python:3", "python:3-ai"} }

func isMade(name string) bool { return slices.Contains(Made(), name) }

// A Set has the images that a node needs to start sandboxes: the guest and its runtimes.
type Set struct {
	Guest   Boot
	qemu    func(ctx context.Context, thing string) (prefix string, err error)
	cache   *Cache // nil: nothing is made or pulled
	sources []source
	inUse   *os.File // its directory, locked against exports that would change it; nil: the cache's
	kept    sync.Map // runtimes that are not released, by name: a cold start reads none twice
}

// A source is one way to come by runtimes. A Set asks the first of its sources that offers a name.
type source struct {
	offers func(name string) bool
	here   func() []string // what it has, without making or fetching anything
	use    func(ctx context.Context, name, namespace string) (r Runtime, release func(), err error)
}

// Set returns the set of all that a builder makes and of images that the cache pulls. It has the
// builder make the guest, with that kernel; where that is empty, there is no guest.
func (c *Cache) Set(ctx context.Context, kernel string) (*Set, error) {
	var boot Boot
	if kernel != "" {
		guest, err := c.Make(ctx, GuestOf(kernel))
		if err != nil {
			return nil, err
		}
		boot = BootIn(guest)
	}
	s := &Set{Guest: boot, qemu: c.Make, sources: []source{{
		offers: isMade,
		here:   func() []string { return nil },
		use: func(ctx context.Context, name, _ string) (Runtime, func(), error) {
			dir, err := c.Make(ctx, name)
			if err != nil {
				return Runtime{}, nil, err
			}
			r, err := RuntimeIn(dir)
			return r, nil, err
		},
	}}}
	s.PullTo(c)
	return s, nil
}

// PullTo lets the set pull images that its other sources do not offer into the cache.
func (s *Set) PullTo(c *Cache) {
	s.cache = c
	s.sources = append(s.sources, source{
		offers: func(name string) bool { return !isMade(name) },
		here:   c.here,
		use:    c.Pull,
	})
}

// OpenSet opens a set that Export wrote. As long as the Set is there, none is written over it.
//
//	DIR/guest/kernel, initrd
//	DIR/qemu/usr, lib64
//	DIR/qemu-patched/usr
//	DIR/runtimes/NAME/root.erofs, config.json
func OpenSet(dir string) (*Set, error) {
	s := &Set{Guest: BootIn(filepath.Join(dir, "guest"))}
	var err error
	if s.inUse, err = lockSet(dir, unix.LOCK_SH); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("somebody exports to %s right now; try again", dir)
	}
	s.qemu = func(_ context.Context, thing string) (string, error) {
		prefix := filepath.Join(dir, thing)
		if _, err := os.Stat(prefix); err != nil {
			return "", fmt.Errorf("there is no %s in %s; export it there", thing, dir)
		}
		return prefix, onlyOurs(prefix)
	}
	for _, file := range []string{s.Guest.Kernel, s.Guest.Initrd} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%s is no set of images: %w; export it anew", dir, err)
		}
	}
	if err := cmp.Or(checkKernel(s.Guest.Kernel), checkInitrd(s.Guest.Initrd)); err != nil {
		return nil, err
	}
	all := filepath.Join(dir, "runtimes")
	has := func(name string) bool {
		info, err := os.Stat(filepath.Join(all, fileName(name)))
		return err == nil && info.IsDir()
	}
	s.sources = []source{{
		offers: func(name string) bool { return isMade(name) || has(name) },
		here: func() []string { // the name of a file does not tell the reference that it is of
			return slices.DeleteFunc(Made(), func(name string) bool { return !has(name) })
		},
		use: func(_ context.Context, name, _ string) (Runtime, func(), error) {
			r, err := RuntimeIn(filepath.Join(all, fileName(name)))
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("no runtime image %s in %s, which has %s; export it there",
					name, dir, strings.Join(children(all), ", "))
			}
			return r, nil, err
		},
	}}
	return s, nil
}

// Use returns the runtime called name for the namespace. It is in use until released; where there
// is nothing to release, it stays.
func (s *Set) Use(
	ctx context.Context, name, namespace string,
) (r Runtime, release func(), err error) {
	if r, kept := s.kept.Load(name); kept {
		return r.(Runtime), nil, nil
	}
	from := slices.IndexFunc(s.sources, func(from source) bool { return from.offers(name) })
	// If none offers it, the first one says what it lacks.
	r, release, err = s.sources[max(from, 0)].use(ctx, name, namespace)
	if err == nil && release == nil {
		s.kept.Store(name, r)
	}
	return r, release, err
}

// Have lists the runtimes that are here already: finding one of them makes and fetches nothing.
func (s *Set) Have() []string {
	names := map[string]bool{}
	s.kept.Range(func(name, _ any) bool { names[name.(string)] = true; return true })
	for _, from := range s.sources {
		for _, name := range from.here() {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Building says what is being done to make or to pull a runtime; it is empty where nothing is.
func (s *Set) Building(name string) string {
	if s.cache == nil {
		return ""
	}
	return cmp.Or(s.cache.builds.doing(name), s.cache.pulls.doing(name))
}

// Hold takes a root image into use that a former process had, until released.
func (s *Set) Hold(ctx context.Context, root string) (release func(), err error) {
	if s.cache == nil {
		return nil, nil
	}
	return s.cache.Hold(ctx, root)
}

// QEMU returns the prefix of package hypervisor. It has the builder make that, if nobody exported
// it.
func (s *Set) QEMU(ctx context.Context) (dir string, err error) {
	return s.qemu(ctx, hypervisor.Thing)
}

// PatchedQEMU is QEMU for the one with fastiov's patches.
func (s *Set) PatchedQEMU(ctx context.Context) (dir string, err error) {
	return s.qemu(ctx, hypervisor.Patched)
}
