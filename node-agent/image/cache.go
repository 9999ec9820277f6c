package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// packagesKey names the package store in the cache and its lock.
const packagesKey = "debian"

// building ends the name of a builder's lock.
const building = ".build"

// CacheLimit bounds the bytes of the cache. Above it, the entries unused for longest are removed,
// except those in use.
const CacheLimit = 8 << 30

// A Cache is a directory of finished images:
//
//	entries/NAME-HASH/     one artefact, complete
//	locks/NAME-HASH        shared: in use by a process; exclusive: being removed
//	locks/NAME-HASH.build  exclusive: being built; apart, since users keep theirs while they live
//	tmp/NAME-HASH/         being built; what no live builder holds is swept
//	names/HASH.json        what a container image is called; under the lock of that name
//	debian/                package index and downloaded packages, under the lock of that name
//
// Many goroutines and processes may use it. What Get and Make return stays in use until Close;
// what Pull returns, until it is released.
type Cache struct {
	// Fetched, if any, is called with the bytes that came from a source: debian or registry.
	Fetched func(source string, bytes int64)
	Pulled  func(Report) // is called, if any, when a pull has ended
	Source  *oci.Source  // of images that are pulled
	Policy  Policy       // when a registry is asked for an image that is here
	Aside   bool         // its pulls stand aside for those that starts wait for
	Builder []string     // the command that Make runs, without its last argument

	dir      string
	out      io.Writer
	limit    int64
	mu       sync.Mutex
	held     map[string]*holding // entries in use, by key
	full     bool                // there was more than the limit when last looked, all of it in use
	building int64               // bytes that builds under way may take
	builds   *builds
	pulls    *pulls
	settling settling
	inflate  inflate
}

// A holding is an entry in use, with the entries that it needs.
type holding struct {
	lock  *os.File
	users int
	with  []func() // releases them
}

// systemDir is the cache where root has no home, as in a service of systemd.
const systemDir = "/var/cache/fastiov"

// DefaultDir is $FASTIOV_CACHE, or fastiov in the user's cache directory.
func DefaultDir() (string, error) {
	if dir := os.Getenv("FASTIOV_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil && os.Geteuid() == 0 {
		return systemDir, nil
	}
	if err != nil {
		return "", fmt.Errorf("no place for the image cache: %w; "+
			"set FASTIOV_CACHE to a directory", err)
	}
	return filepath.Join(dir, "fastiov"), nil
}

// Open opens the cache in dir, making it if need be; an empty dir means DefaultDir. Progress
// lines go to out.
func Open(dir string, out io.Writer) (*Cache, error) {
	if dir == "" {
		var err error
		if dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	for _, sub := range []string{"entries", "locks", "tmp", namesKey} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("image cache: %w; "+
				"set FASTIOV_CACHE to a directory you may write", err)
		}
	}
	c := &Cache{
		dir: dir, out: &lockedWriter{w: out}, limit: CacheLimit,
		held: map[string]*holding{}, builds: newBuilds(), pulls: newPulls(),
	}
	c.Source = c.defaultSource()
	c.settling.ctx, c.settling.end = context.WithCancel(context.Background())
	c.sweep()
	return c, nil
}

// Close ends pulls and builders that are under way, and lets go of the entries handed out.
func (c *Cache) Close() {
	c.settling.end() // some pull may wait for it
	c.pulls.close()
	c.builds.close()
	c.settling.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, h := range c.held {
		h.lock.Close()
		delete(c.held, key)
	}
}

// A recipe makes an entry: by what it is called and found again, how much of the disk it
// takes while it is being made, and what fills its empty directory. What that says through say is
// shown with the time elapsed. An entry that is sealed is published before the disk has it
// (seal.go).
type recipe struct {
	name   string
	inputs []string
	needs  int64
	sealed bool
	build  func(ctx context.Context, dir string, say func(string, ...any)) error
}

// key returns what the entry is called.
func (r recipe) key() string {
	key := keyOf(r.name, r.inputs)
	if r.sealed {
		key += sealedKey
	}
	return key
}

// Get returns the directory of the entry called name that was made from inputs, building it first
// if it is absent. It stays in use.
func (c *Cache) Get(
	ctx context.Context, name string, inputs []string,
	build func(ctx context.Context, dir string, say func(string, ...any)) error,
) (string, error) {
	return c.GetLarge(ctx, name, inputs, needed, build)
}

// GetLarge is Get for an entry that takes so much of the disk while it is being made.
func (c *Cache) GetLarge(
	ctx context.Context, name string, inputs []string, needs int64,
	build func(ctx context.Context, dir string, say func(string, ...any)) error,
) (string, error) {
	dir, _, err := c.take(ctx, recipe{name: name, inputs: inputs, needs: needs, build: build})
	return dir, err
}

// Has is Get for an entry that is not to be built.
func (c *Cache) Has(ctx context.Context, name string, inputs []string) (dir string, has bool) {
	key := keyOf(name, inputs)
	has, err := c.hold(ctx, key)
	return c.entry(key), has && err == nil
}

// Latest returns the entry of that name that was used last, whatever it was made from. It stays in
// use.
func (c *Cache) Latest(ctx context.Context, name string) (dir string, has bool) {
	for _, e := range slices.Backward(c.entries()) {
		of, found := strings.CutPrefix(e.key, fileName(name)+"-")
		if !found || strings.Contains(of, "-") {
			continue
		}
		if held, err := c.hold(ctx, e.key); held && err == nil {
			return c.entry(e.key), true
		}
	}
	return "", false
}

// Packages returns the directory of the package index and of downloaded packages, under its lock.
func (c *Cache) Packages(ctx context.Context) (dir string, release func(), err error) {
	lock, err := c.lock(ctx, packagesKey, unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(c.dir, packagesKey), func() { lock.Close() }, nil
}

// Dir returns the directory of the whole cache.
func (c *Cache) Dir() string { return c.dir }

// Say prints one line of progress.
func (c *Cache) Say(name, format string, args ...any) {
	s := newStep(c.out, name)
	s.say(format, args...)
	s.end()
}

// take is Get for an entry that is released one day.
func (c *Cache) take(ctx context.Context, r recipe) (dir string, release func(), err error) {
	key := r.key()
	for built := false; ; built = true {
		found, err := c.hold(ctx, key)
		if err != nil {
			return "", nil, err
		}
		if found {
			if built && r.name != layerName { // and is held: it is not itself what has to go
				c.evict(c.limit)
			}
			return c.entry(key), c.releaseOf(key), nil
		}
		if err := c.build(ctx, r, key); err != nil {
			if errors.Is(err, unix.ENOSPC) {
				err = fmt.Errorf("%w; free some of the disk of %s, "+
					"or set FASTIOV_CACHE to a directory on another", err, c.dir)
			}
			if refused := (*oci.Refusal)(nil); errors.As(err, &refused) { // which names the image
				return "", nil, err
			}
			return "", nil, fmt.Errorf("image %s: %w", r.name, err)
		}
	}
}

func (c *Cache) entry(key string) string { return filepath.Join(c.dir, "entries", key) }

func keyOf(name string, inputs []string) string { return fileName(name) + "-" + Hash(inputs) }

// Hash is the part of an entry's key that its inputs decide.
func Hash(inputs []string) string {
	h := sha256.New()
	for _, input := range inputs {
		fmt.Fprintf(h, "%d:%s", len(input), input)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// maxFileName leaves room, in the 255 bytes that a file's name may have, for what is put around it.
const maxFileName = 200

// fileName turns a runtime's name into the name of a file. If it is too long, a hash of the whole
// name replaces its end.
func fileName(name string) string {
	fit := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' ||
			r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if len(fit) > maxFileName {
		sum := Hash([]string{name})
		fit = fit[:maxFileName-len(sum)-1] + "-" + sum
	}
	return fit
}

// hold takes the entry into use if it exists.
func (c *Cache) hold(ctx context.Context, key string) (bool, error) {
	if c.holdAgain(key, nil, nil) {
		return true, nil
	}
	lock, err := c.lock(ctx, key, unix.LOCK_SH)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(c.entry(key)); err != nil {
		unlock(lock)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	with, sound, err := c.sound(ctx, key)
	if !sound || err != nil {
		lock.Close()
		if err == nil {
			c.removeEntry(key)
		}
		return false, err
	}
	c.used(key)
	return c.holdAgain(key, lock, with), nil
}

// holdAgain counts one more user of an entry that is in use, or is now by that lock, with what it
// needs.
func (c *Cache) holdAgain(key string, lock *os.File, with []func()) bool {
	c.mu.Lock()
	h := c.held[key]
	switch {
	case h == nil && lock == nil:
		c.mu.Unlock()
		return false
	case h == nil:
		h = &holding{lock: lock, with: with}
		c.held[key] = h
		with = nil
	case lock != nil:
		lock.Close()
	}
	h.users++
	c.mu.Unlock()
	for _, release := range with {
		release()
	}
	return true
}

// used notes the time of last use, for eviction; a read-only cache does without.
func (c *Cache) used(key string) {
	now := time.Now()
	_ = os.Chtimes(c.entry(key), now, now)
}

// releaseOf gives back one use of the entry, which has been taken; a second call does nothing.
func (c *Cache) releaseOf(key string) func() {
	c.mu.Lock()
	h := c.held[key]
	c.mu.Unlock()
	if h == nil { // the cache has been closed
		return func() {}
	}
	return sync.OnceFunc(func() {
		c.mu.Lock()
		h.users--
		unused := h.users == 0 && c.held[key] == h
		if unused {
			c.used(key)
			h.lock.Close()
			delete(c.held, key)
		}
		full := unused && c.full
		c.mu.Unlock()
		for _, release := range h.with {
			if unused {
				release()
			}
		}
		if full {
			c.evict(c.limit)
		}
	})
}

// build makes the entry unless somebody else did while it waited for the lock.
func (c *Cache) build(ctx context.Context, r recipe, key string) (err error) {
	lock, err := c.lock(ctx, key+building, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock(lock)
	if _, err := os.Stat(c.entry(key)); err == nil {
		return nil
	}
	give, err := c.room(r.needs)
	if err != nil {
		return err
	}
	defer give()
	tmp := filepath.Join(c.dir, "tmp", key)
	if err := os.RemoveAll(tmp); err != nil { // of a builder that died: its lock is ours now
		return err
	}
	if err := MakeDir(tmp); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s := newStep(c.out, r.name)
	defer s.end()
	if err := r.build(ctx, tmp, s.say); err != nil {
		return err
	}
	sync := syncPath
	if r.sealed {
		sync = func(string) error { return nil }
	}
	failpoint.Hit(failpoint.PullSealed)
	if err := publish(tmp, c.entry(key), sync); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PullEntry)
	if r.sealed {
		c.settle(key)
	}
	s.say("done, %s", megabytes(size(c.entry(key))))
	return nil
}

// CountFetched counts bytes that came from a source.
func (c *Cache) CountFetched(source string, bytes int64) {
	if c.Fetched != nil && bytes > 0 {
		c.Fetched(source, bytes)
	}
}

// needed is the room on the disk that an image may take while it is made.
const needed = 1 << 30

// room fails where the disk is too full to make an image beside those that are being made: tools
// that run into a full disk half-way try again for minutes. It is taken until given back. A layer
// needs none: its image has taken it.
func (c *Cache) room(needs int64) (give func(), err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.dir, &disk); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if free := int64(disk.Bavail)*disk.Bsize - c.building; needs > 0 && free < needs {
		return nil, fmt.Errorf("it may take %s to make and %s are free: %w",
			megabytes(needs), megabytes(max(free, 0)), unix.ENOSPC)
	}
	c.building += needs
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.building -= needs
	}, nil
}

// publish gives a finished directory its name. It syncs the files below it first, then the
// folders, and last the name: an entry is whole after a power cut too.
func publish(tmp, entry string, sync func(path string) error) error {
	var folders []string
	err := filepath.WalkDir(tmp, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			folders = append(folders, path)
		case d.Type().IsRegular():
			return sync(path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, folder := range slices.Backward(folders) {
		if err := sync(folder); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, entry); err != nil {
		return err
	}
	return sync(filepath.Dir(entry))
}

// syncPath writes to the disk what is in memory of a file or a folder.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// lock takes the lock of key in the given mode, waiting until ctx ends.
func (c *Cache) lock(ctx context.Context, key string, mode int) (*os.File, error) {
	for {
		f, err := c.lockFile(ctx, key, mode)
		if err != nil || isAt(f) {
			return f, err
		}
		f.Close() // it has been removed meanwhile
	}
}

// isAt reports whether the file is still the one of its name.
func isAt(f *os.File) bool {
	mine, err := f.Stat()
	there, gone := os.Stat(f.Name())
	return err == nil && gone == nil && os.SameFile(mine, there)
}

// unlock gives a lock back, and removes its file where nobody else has the lock: of invented names
// there would be more and more. Whoever waits for it takes the lock of a new file.
func unlock(f *os.File) {
	if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(f) {
		_ = os.Remove(f.Name())
	}
	f.Close()
}

func (c *Cache) lockFile(ctx context.Context, key string, mode int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "locks", key), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if flock(f, mode|unix.LOCK_NB) == nil {
		return f, nil
	}
	taken := make(chan error, 1)
	go func() { taken <- flock(f, mode) }()
	select {
	case err := <-taken:
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", key, err)
		}
		return f, nil
	case <-ctx.Done():
		go func() { <-taken; f.Close() }()
		return nil, context.Cause(ctx)
	}
}

func flock(f *os.File, mode int) error {
	for {
		err := unix.Flock(int(f.Fd()), mode)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// A lockedWriter lets the steps of parallel builds write whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
