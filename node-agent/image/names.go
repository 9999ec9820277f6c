package image

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A Name holds what a container image is called, and the entry that it stood for when it was last
// looked up. Names are files in the cache, so an image that is here starts while its registry is
// away, by a later agent too.
type Name struct {
	Ref       string // in full
	Namespace string // that pulled it; empty: everybody may have it, it came without credentials
	Digest    string
	Entry     string // key of the root
	At        time.Time
	Loaded    bool `json:",omitempty"` // from an archive: no registry is asked what it stands for
	Pinned    bool `json:",omitempty"` // never evicted
}

// namesKey names the folder of names in the cache, and its lock.
const namesKey = "names"

func (c *Cache) nameFile(key asked) string {
	return filepath.Join(c.dir, namesKey, Hash([]string{key.namespace, key.ref})+".json")
}

// Names lists the names of the images that are here, by reference and namespace.
func (c *Cache) Names() (all []Name) {
	for _, file := range children(filepath.Join(c.dir, namesKey)) {
		n, err := readName(filepath.Join(c.dir, namesKey, file))
		if err != nil {
			continue // cut short by a power cut: the registry knows better
		}
		if _, err := os.Stat(c.entry(n.Entry)); err == nil {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b Name) int {
		return strings.Compare(a.Ref+"\n"+a.Namespace, b.Ref+"\n"+b.Namespace)
	})
	return all
}

func readName(file string) (n Name, err error) {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	return n, err
}

// name has the names changed under their lock: to what change makes of the one that is there.
func (c *Cache) name(ctx context.Context, key asked, change func(*Name)) error {
	lock, err := c.lock(ctx, namesKey, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	file := c.nameFile(key)
	n, _ := readName(file)
	n.Ref, n.Namespace = key.ref, key.namespace
	if change(&n); n.Entry == "" {
		return fmt.Errorf("%s is not here any more", key.ref)
	}
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	err = os.WriteFile(file+".new", b, 0o644)
	if err == nil && (n.Pinned || n.Loaded) { // no registry can say it again
		err = syncPath(file + ".new")
	}
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.PullNaming)
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PullNamed)
	return nil
}

// forgetNames removes the names that stand for nothing that is here, and what a crash left of one.
func (c *Cache) forgetNames() {
	c.unused(namesKey, func() error {
		for _, file := range children(filepath.Join(c.dir, namesKey)) {
			path := filepath.Join(c.dir, namesKey, file)
			n, err := readName(path)
			if err == nil {
				_, err = os.Stat(c.entry(n.Entry))
			}
			if err != nil || !strings.HasSuffix(file, ".json") {
				_ = os.Remove(path)
			}
		}
		return nil
	})
}

// pinned lists the entries that are never evicted.
func (c *Cache) pinned() map[string]bool {
	pinned := map[string]bool{}
	for _, n := range c.Names() {
		if n.Pinned {
			pinned[n.Entry] = true
		}
	}
	return pinned
}

// recall returns what a name stood for when this or a former process looked it up: for the
// namespace, or for everybody if that was later.
func (c *Cache) recall(key asked) (o outcome, known bool) {
	var last time.Time
	for _, whose := range []asked{key, {ref: key.ref}} {
		n, err := readName(c.nameFile(whose))
		if err != nil || n.Ref != key.ref || n.Namespace != whose.namespace ||
			known && !n.At.After(last) {
			continue
		}
		if r, err := RuntimeIn(c.entry(n.Entry)); err == nil {
			o, known = outcome{Runtime: r, ref: n.Ref, until: c.Policy.until(n)}, true
			last = n.At
		}
	}
	return o, known
}

// namedSince reports whether the name was given after that, to an image of the namespace's or of
// everybody's.
func (c *Cache) namedSince(key asked, at time.Time) bool {
	for _, whose := range []asked{key, {ref: key.ref}} {
		if info, err := os.Stat(c.nameFile(whose)); err == nil && info.ModTime().After(at) {
			return true
		}
	}
	return false
}

// here lists the references of the images that are here, as whoever asked first wrote them.
func (c *Cache) here() []string {
	refs := map[string]string{} // by reference in full
	if info, err := os.Stat(filepath.Join(c.dir, namesKey)); err == nil {
		s := c.pulls
		s.mu.Lock()
		if !info.ModTime().Equal(s.named) {
			s.named, s.names = info.ModTime(), c.Names()
		}
		for _, n := range s.names {
			refs[n.Ref] = n.Ref
		}
		s.mu.Unlock()
	}
	for _, ref := range c.pulls.pulled() {
		refs[oci.InFull(ref)] = ref
	}
	return slices.Sorted(maps.Values(refs))
}
