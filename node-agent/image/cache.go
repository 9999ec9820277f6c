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
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// building is what the name of a builder's lock ends in.
const building = ".build"

// maxBytes is what the cache may hold; above it the entries unused for longest go, those in use excepted.
const maxBytes = 8 << 30

// A Cache is a directory of finished images:
//
//	entries/NAME-HASH/     one artefact, complete
//	locks/NAME-HASH        shared: in use by a process; exclusive: being removed
//	locks/NAME-HASH.build  exclusive: being built. It is another lock because users keep theirs for as long as they live
//	tmp/NAME-HASH/         being built; what no live builder holds is swept
//	debian/                package index and downloaded packages, under the lock of that name
//
// It is safe for use by many goroutines and processes. What a Cache has handed out is kept while its process lives or until Close.
type Cache struct {
	Fetched func(source string, bytes int64) // is told what comes from where: debian or registry; nil: nobody is

	dir  string
	out  io.Writer
	mu   sync.Mutex
	held map[string]*os.File // locks of entries handed out, by key
	made map[string]Runtime  // runtimes handed out, by name: a cold start that needs one again asks no disk and no registry
}

// DefaultDir is $FASTIOV_CACHE, or fastiov in the user's cache directory.
func DefaultDir() (string, error) {
	if dir := os.Getenv("FASTIOV_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the image cache: %w; set FASTIOV_CACHE to a directory", err)
	}
	return filepath.Join(dir, "fastiov"), nil
}

// Open opens the cache in dir, making it if need be; an empty dir means DefaultDir. Progress lines go to out.
func Open(dir string, out io.Writer) (*Cache, error) {
	if dir == "" {
		var err error
		if dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	for _, sub := range []string{"entries", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("image cache: %w; set FASTIOV_CACHE to a directory you may write", err)
		}
	}
	return &Cache{dir: dir, out: &lockedWriter{w: out}, held: map[string]*os.File{}, made: map[string]Runtime{}}, nil
}

// Close lets go of the entries handed out.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, lock := range c.held {
		lock.Close()
		delete(c.held, key)
	}
	clear(c.made)
}

// Get returns the directory of the entry called name that was made from inputs, building it first if it is absent. build fills the
// empty directory dir; what it says through say is shown with the time elapsed.
func (c *Cache) Get(ctx context.Context, name string, inputs []string, build func(ctx context.Context, dir string, say func(string, ...any)) error) (string, error) {
	key := fileName(name) + "-" + hash(inputs)
	entry := filepath.Join(c.dir, "entries", key)
	for {
		found, err := c.hold(ctx, key, entry)
		if err != nil || found {
			return entry, err
		}
		if err := c.build(ctx, name, key, build); err != nil {
			if errors.Is(err, unix.ENOSPC) {
				err = fmt.Errorf("%w; free some of the disk of %s, or set FASTIOV_CACHE to a directory on another", err, c.dir)
			}
			return "", fmt.Errorf("image %s: %w", name, err)
		}
		c.evict(maxBytes)
	}
}

func hash(inputs []string) string {
	h := sha256.New()
	for _, input := range inputs {
		fmt.Fprintf(h, "%d:%s", len(input), input)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// hold takes the entry into use if it exists.
func (c *Cache) hold(ctx context.Context, key, entry string) (bool, error) {
	c.mu.Lock()
	_, have := c.held[key]
	c.mu.Unlock()
	if have {
		return true, nil
	}
	lock, err := c.lock(ctx, key, unix.LOCK_SH)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(entry); err != nil {
		lock.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	now := time.Now()
	_ = os.Chtimes(entry, now, now) // the time of last use, for eviction; a read-only cache does without
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, have := c.held[key]; have {
		lock.Close()
	} else {
		c.held[key] = lock
	}
	return true, nil
}

// build makes the entry unless somebody else did while it waited for the lock.
func (c *Cache) build(ctx context.Context, name, key string, build func(context.Context, string, func(string, ...any)) error) (err error) {
	lock, err := c.lock(ctx, key+building, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	entry := filepath.Join(c.dir, "entries", key)
	if _, err := os.Stat(entry); err == nil {
		return nil
	}
	if err := c.room(); err != nil {
		return err
	}
	tmp := filepath.Join(c.dir, "tmp", key)
	if err := os.RemoveAll(tmp); err != nil { // of a builder that died: its lock is ours now
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	s := newStep(c.out, name)
	defer s.end()
	if err := build(ctx, tmp, s.say); err != nil {
		return err
	}
	if err := publish(tmp, entry); err != nil {
		return err
	}
	s.say("done, %s", megabytes(size(entry)))
	return nil
}

func (c *Cache) fetched(source string, bytes int64) {
	if c.Fetched != nil && bytes > 0 {
		c.Fetched(source, bytes)
	}
}

// room fails where the disk is too full to make an image: tools that run into a full disk half-way try again for minutes.
func (c *Cache) room() error {
	const needed = 1 << 30
	var disk unix.Statfs_t
	if err := unix.Statfs(c.dir, &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < needed {
		return fmt.Errorf("it may take %s to make and %s are free: %w", megabytes(needed), megabytes(free), unix.ENOSPC)
	}
	return nil
}

// publish gives a finished directory its name, once its files are on the disk: an entry is whole after a power cut too.
func publish(tmp, entry string) error {
	for _, name := range children(tmp) {
		f, err := os.Open(filepath.Join(tmp, name))
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return os.Rename(tmp, entry)
}

// lock takes the lock of key in the given mode, waiting until ctx ends.
func (c *Cache) lock(ctx context.Context, key string, mode int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "locks", key), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
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
