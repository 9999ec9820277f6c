package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A Listed is a container image that is here. Images share layers: Bytes is what it takes of the
// disk with all of them, Unique what would be free without it.
type Listed struct {
	Name
	Bytes, Unique int64
	Used          time.Time
	Users         []int // processes
}

// ErrNotHere is returned where no image has the name that was given.
var ErrNotHere = errors.New("it is not here; `fastiov image ls` lists the images that are")

// Images lists the container images that are here.
func (c *Cache) Images() (list []Listed) {
	entries := c.entries()
	sizes, used := map[string]int64{}, map[string]time.Time{}
	for _, e := range entries {
		sizes[e.key], used[e.key] = e.size, e.used
	}
	needed := c.references(entries)
	for _, n := range c.Names() {
		l := Listed{Name: n, Bytes: sizes[n.Entry], Used: used[n.Entry], Users: c.users(n.Entry)}
		l.Unique = l.Bytes
		layers, _ := needsOf(c.entry(n.Entry))
		for _, layer := range layers {
			l.Bytes += sizes[layer]
			if needed[layer] == 1 {
				l.Unique += sizes[layer]
			}
		}
		list = append(list, l)
	}
	return list
}

// users lists the processes that use an entry: those that the kernel says have its lock.
func (c *Cache) users(key string) (pids []int) {
	info, err := os.Stat(filepath.Join(c.dir, "locks", key))
	if err != nil {
		return nil
	}
	inode := strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	for _, l := range allLocks() {
		if l.inode == inode && !l.waits {
			pids = append(pids, l.pid)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// named lists what the image ref is kept under: for one namespace, or with nil for all.
func (c *Cache) named(ref string, namespace *string) (names []Name, err error) {
	ref = oci.InFull(ref)
	for _, n := range c.Names() {
		if n.Ref == ref && (namespace == nil || n.Namespace == *namespace) {
			names = append(names, n)
		}
	}
	if names == nil {
		return nil, fmt.Errorf("%s: %w", ref, ErrNotHere)
	}
	return names, nil
}

// Remove removes an image, and the layers that no other needs. One in use stays.
func (c *Cache) Remove(ref string, namespace *string) error {
	names, err := c.named(ref, namespace)
	if err != nil {
		return err
	}
	for _, n := range names {
		others := slices.ContainsFunc(c.Names(), func(o Name) bool {
			return o.Entry == n.Entry && (o.Ref != n.Ref || o.Namespace != n.Namespace)
		})
		layers, err := needsOf(c.entry(n.Entry))
		if err != nil {
			return err
		}
		if !others && !c.removeEntry(n.Entry) {
			return fmt.Errorf("%s is in use by process %v; end its sandboxes first", n.Ref,
				c.users(n.Entry))
		}
		c.removeUnused(namesKey, namesKey, filepath.Base(c.nameFile(asked{n.Namespace, n.Ref})))
		if !others {
			c.drop(layers)
		}
	}
	return nil
}

// Prune removes the container images that nobody uses and nobody pinned, and layers that pulls
// left which came to no end. It returns the bytes that are free again.
func (c *Cache) Prune() (images int, bytes int64) {
	before := size(c.dir)
	pinned := c.pinned()
	for _, e := range c.entries() {
		_, err := os.Stat(filepath.Join(c.entry(e.key), layersName))
		if err == nil && !pinned[e.key] && c.removeEntry(e.key) {
			images++
		}
	}
	var layers []string
	for _, e := range c.entries() {
		if strings.HasPrefix(e.key, layerName+"-") {
			layers = append(layers, e.key)
		}
	}
	c.drop(layers)
	c.sweep()
	c.forgetNames()
	return images, before - size(c.dir)
}

// Pin keeps an image until that is undone, however long nobody uses it.
func (c *Cache) Pin(ctx context.Context, ref string, namespace *string, pin bool) error {
	names, err := c.named(ref, namespace)
	for _, n := range names {
		key := asked{n.Namespace, n.Ref}
		if err := c.name(ctx, key, func(n *Name) { n.Pinned = pin }); err != nil {
			return err
		}
	}
	return err
}

// Load takes the images of an archive or a directory into the cache, for all namespaces, and
// returns their names. Where called is not empty, it is the name of the only image.
func (c *Cache) Load(ctx context.Context, path, called string) (refs []string, err error) {
	saved, err := oci.OpenSaved(path)
	if err != nil {
		return nil, err
	}
	return c.load(ctx, saved, called)
}

// LoadFrom is Load of an archive that can be read only once.
func (c *Cache) LoadFrom(ctx context.Context, in io.Reader, called string) (
	refs []string, err error) {
	f, err := os.CreateTemp(filepath.Join(c.dir, "tmp"), "load-*")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // the open file is enough
	_, err = io.Copy(f, in)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("the images from standard input: %w; free some of the disk of %s, "+
			"or set FASTIOV_CACHE to a directory on another", err, c.dir)
	}
	saved, err := oci.ReadSaved(f, "standard input")
	if err != nil {
		return nil, err
	}
	return c.load(ctx, saved, called)
}

func (c *Cache) load(ctx context.Context, saved *oci.Saved, called string) (
	refs []string, err error) {
	defer saved.Close()
	images, err := saved.Images(ctx, called)
	if err != nil {
		return nil, err
	}
	for _, image := range images {
		p := &pulling{}
		p.begin(image, 0)
		_, release, err := c.bringImage(ctx, image, asked{"", image.Ref}, true, p)
		if err != nil {
			return refs, err
		}
		release()
		refs = append(refs, image.Ref)
	}
	return refs, nil
}
