package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

type entry struct {
	key  string
	used time.Time
	size int64
}

// evict removes the entries unused for longest until the cache holds no more than limit, and what
// dead builders left. Entries that a process uses, and builds under way, stay: their lock is taken.
// A layer stays as long as a root that needs it, and a pinned image until that is undone.
func (c *Cache) evict(limit int64) {
	list, total := c.entries(), size(c.dir)
	needed, pinned := c.references(list), c.pinned()
	for removed := true; removed && total > limit; {
		removed = false
		for n, e := range list {
			if total <= limit {
				break
			}
			if e.key == "" || needed[e.key] > 0 || pinned[e.key] {
				continue
			}
			layers, _ := needsOf(c.entry(e.key)) // else they stay until the next time
			if !c.removeEntry(e.key) {
				continue
			}
			for _, layer := range layers {
				needed[layer]--
			}
			total -= e.size
			list[n].key, removed = "", true
		}
	}
	c.sweep()
	c.forgetNames()
	if total > limit {
		c.removeUnused(packagesKey, packagesKey)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = total > limit // whoever releases an entry tries again
}

// references counts the roots that need a layer. One that nobody can look at, as for want of
// descriptors, may need each.
func (c *Cache) references(list []entry) map[string]int {
	needed := map[string]int{}
	for _, e := range list {
		layers, err := needsOf(c.entry(e.key))
		if err != nil {
			for _, other := range list {
				if strings.HasPrefix(other.key, layerName+"-") {
					layers = append(layers, other.key)
				}
			}
		}
		for _, layer := range layers {
			needed[layer]++
		}
	}
	return needed
}

// sweep removes what dead builders left.
func (c *Cache) sweep() {
	for _, key := range children(filepath.Join(c.dir, "tmp")) {
		c.removeUnused(key+building, "tmp", key)
	}
}

// Usage returns how many bytes the cache holds, and may hold.
func (c *Cache) Usage() (holds, limit int64) { return size(c.dir), c.limit }

// entries lists what is finished, unused for longest first.
func (c *Cache) entries() []entry {
	var list []entry
	for _, key := range children(filepath.Join(c.dir, "entries")) {
		path := filepath.Join(c.dir, "entries", key)
		if info, err := os.Stat(path); err == nil {
			list = append(list, entry{key, info.ModTime(), size(path)})
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return a.used.Compare(b.used) })
	return list
}

// removeEntry removes an entry that nobody uses. It moves first: where the removal is interrupted,
// half an entry would be taken for a whole one.
func (c *Cache) removeEntry(key string) bool {
	return c.unused(key, func() error {
		gone := filepath.Join(c.dir, "tmp", key+".gone")
		if err := os.RemoveAll(gone); err != nil {
			return err
		}
		if err := os.Rename(c.entry(key), gone); err != nil {
			return err
		}
		failpoint.Hit(failpoint.EvictMoved)
		return os.RemoveAll(gone)
	})
}

// removeUnused removes a path in the cache unless the lock called key is taken.
func (c *Cache) removeUnused(key string, path ...string) bool {
	return c.unused(key, func() error {
		return os.RemoveAll(filepath.Join(c.dir, filepath.Join(path...)))
	})
}

// unused runs remove unless the lock called key is taken.
func (c *Cache) unused(key string, remove func() error) bool {
	lock, err := os.OpenFile(filepath.Join(c.dir, "locks", key), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false
	}
	defer unlock(lock)
	return flock(lock, unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(lock) && remove() == nil
}

func children(dir string) []string {
	list, _ := os.ReadDir(dir)
	var found []string
	for _, d := range list {
		found = append(found, d.Name())
	}
	return found
}

// size returns the room that the files below dir take on the disk: holes in them take nothing.
func size(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var file unix.Stat_t
		if err == nil && d.Type().IsRegular() && unix.Lstat(path, &file) == nil {
			const block = 512 // whatever the file system's own are
			total += file.Blocks * block
		}
		return nil
	})
	return total
}

func megabytes(n int64) string { return fmt.Sprintf("%d MB", (n+1<<19)>>20) }
