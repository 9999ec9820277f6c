package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) {
	if os.Getenv(asForger) != "" {
		serveForgeries()
		return
	}
	if os.Getenv(asNode) != "" {
		beNode()
	}
	leaks.Main(m)
}

func open(t testing.TB, dir string) *Cache {
	t.Helper()
	c, err := Open(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c.inflate.found = true // nothing is measured, and no entry has what was
	t.Cleanup(c.Close)
	return c
}

type builder = func(ctx context.Context, dir string, say func(string, ...any)) error

// filling is a build that writes n bytes and counts itself.
func filling(n int, count *atomic.Int32) builder {
	return func(_ context.Context, dir string, say func(string, ...any)) error {
		count.Add(1)
		return os.WriteFile(filepath.Join(dir, "f"), bytes.Repeat([]byte("x"), n), 0o644)
	}
}

// TestAnEntryIsOnTheDiskBeforeItHasItsName: nested files are synced before their folders, those
// before the rename, and the folder with the entry's name at the end.
func TestAnEntryIsOnTheDiskBeforeItHasItsName(t *testing.T) {
	dir := t.TempDir()
	tmp, entry := filepath.Join(dir, "tmp"), filepath.Join(dir, "entries", "e")
	for _, folder := range []string{"entries", "tmp/usr/bin", "tmp/empty"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"kernel", "usr/bin/qemu"} {
		if err := os.WriteFile(filepath.Join(tmp, file), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(tmp, "link")); err != nil {
		t.Fatal(err)
	}
	broken, failing := errors.New("input/output error"), ""
	var synced []string
	sync := func(path string) error {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name == failing {
			return broken
		}
		_, absent := os.Stat(entry)
		if named := absent == nil; named != (name == "entries") {
			t.Errorf("%s is synced while the entry has its name: %v", name, named)
		}
		synced = append(synced, name)
		return syncPath(path)
	}
	for _, failing = range []string{"tmp/usr/bin/qemu", "tmp/usr/bin"} {
		if err := publish(tmp, entry, sync); err != broken {
			t.Errorf("%s cannot be synced, and it ends with %v", failing, err)
		}
	}
	synced, failing = nil, ""
	if err := publish(tmp, entry, sync); err != nil {
		t.Fatal(err)
	}
	want := []string{"tmp/kernel", "tmp/usr/bin/qemu",
		"tmp/usr/bin", "tmp/usr", "tmp/empty", "tmp", "entries"}
	if !slices.Equal(synced, want) {
		t.Errorf("synced are %q, want %q", synced, want)
	}
}

// TestHalfAnEntryIsNone: the removal of an entry stops in its middle, as when the machine does; the
// entry is made anew, not handed out without what was removed already.
func TestHalfAnEntryIsNone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a directory that cannot be removed")
	}
	dir, count := t.TempDir(), atomic.Int32{}
	build := func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := os.Mkdir(filepath.Join(dir, "stays"), 0o755); err != nil {
			return err
		}
		return filling(10, &count)(ctx, dir, say)
	}
	c := open(t, dir)
	entry, err := c.Get(t.Context(), "a", nil, build)
	if err != nil {
		t.Fatal(err)
	}
	stays := filepath.Join(entry, "stays")
	if err := syscall.Mount("tmpfs", stays, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mounts, _ := filepath.Glob(filepath.Join(dir, "*", "*", "stays"))
		for _, mount := range mounts {
			_ = syscall.Unmount(mount, 0)
		}
	})
	c.Close()
	if c.removeEntry(filepath.Base(entry)) {
		t.Fatal("it was removed whole")
	}
	again, err := open(t, dir).Get(t.Context(), "a", nil, build)
	if err != nil || !slices.Equal(children(again), []string{"f", "stays"}) || count.Load() != 2 {
		t.Errorf("made %d times, it holds %v, %v", count.Load(), children(again), err)
	}
}

func TestOneBuildForAll(t *testing.T) {
	dir, count := t.TempDir(), atomic.Int32{}
	// Locks are of open files, so these two meet as two processes do.
	caches := []*Cache{open(t, dir), open(t, dir)}
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			got, err := caches[n%2].Get(t.Context(), "a:b/c", []string{"1"}, filling(10, &count))
			if err != nil || !slices.Equal(children(got), []string{"f"}) {
				t.Errorf("%s holds %v, %v", got, children(got), err)
			}
		})
	}
	wg.Wait()
	if count.Load() != 1 {
		t.Errorf("built %d times", count.Load())
	}
}

func TestInputsMakeTheKey(t *testing.T) {
	c, count := open(t, t.TempDir()), atomic.Int32{}
	seen := map[string]bool{}
	for _, inputs := range [][]string{{"ab", "c"}, {"a", "bc"}, {"abc"}, {}, {""}} {
		got, err := c.Get(t.Context(), "x", inputs, filling(1, &count))
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if len(seen) != 5 || count.Load() != 5 {
		t.Errorf("%d entries of %d builds, want 5", len(seen), count.Load())
	}
}

func TestLongNamesAreKept(t *testing.T) {
	c := open(t, t.TempDir())
	var count atomic.Int32
	long := "registry.example/" + strings.Repeat("a/", 400)
	for range 2 {
		for _, name := range []string{long + ":one", long + ":two"} {
			if _, err := c.Get(t.Context(), name, []string{name}, filling(10, &count)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if count.Load() != 2 {
		t.Errorf("%d builds of two images", count.Load())
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	c, broken := open(t, dir), errors.New("disk on fire")
	_, err := c.Get(t.Context(), "x", nil, func(
		_ context.Context, dir string, _ func(string, ...any),
	) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), []byte("half"), 0o644), broken)
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "image x") {
		t.Errorf("got %v", err)
	}
	if left := size(filepath.Join(dir, "tmp")) + size(filepath.Join(dir, "entries")); left != 0 {
		t.Errorf("%d bytes left", left)
	}
	var count atomic.Int32
	if _, err := c.Get(t.Context(), "x", nil, filling(1, &count)); err != nil || count.Load() != 1 {
		t.Errorf("after a failure: %d builds, %v", count.Load(), err)
	}
}

func TestDeadBuildersLeftoversGo(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	for _, sub := range []string{"x-" + Hash(nil), "other-0123"} {
		if err := os.MkdirAll(filepath.Join(dir, "tmp", sub, "half"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var count atomic.Int32
	got, err := c.Get(t.Context(), "x", nil, filling(1, &count))
	if err != nil || len(children(got)) != 1 {
		t.Errorf("%v holds %v, %v", got, children(got), err)
	}
	if left := children(filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWaitingForABuildCanBeCancelled(t *testing.T) {
	dir := t.TempDir()
	c, other := open(t, dir), open(t, dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("caller left")
	_, err := c.Get(t.Context(), "x", nil, func(
		context.Context, string, func(string, ...any),
	) error {
		cancel(why)
		_, err := other.Get(ctx, "x", nil, nil)
		if !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// age makes an entry look used so long ago.
func age(t *testing.T, entry string, by time.Duration) {
	t.Helper()
	at := time.Now().Add(-by)
	if err := os.Chtimes(entry, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestEvictionTakesTheLongestUnused(t *testing.T) {
	dir, count := t.TempDir(), atomic.Int32{}
	user, idle := open(t, dir), open(t, dir)
	get := func(c *Cache, name string) string {
		entry, err := c.Get(t.Context(), name, nil, filling(1<<20, &count))
		if err != nil {
			t.Fatal(err)
		}
		return entry
	}
	held, old, young := get(user, "held"), get(idle, "old"), get(idle, "young")
	idle.Close()
	age(t, held, 3*time.Hour)
	age(t, old, 2*time.Hour)
	age(t, young, time.Hour)
	user.evict(5 << 19)
	for entry, want := range map[string]bool{held: true, old: false, young: true} {
		if _, err := os.Stat(entry); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", filepath.Base(entry), err == nil, want)
		}
	}
	user.Close()
	if idle.evict(-1); size(dir) != 0 {
		t.Errorf("%d bytes stay that nobody uses", size(dir))
	}
}

// TestWhatIsInUseMayExceedTheBound: an entry that is new stays although older ones take all.
func TestWhatIsInUseMayExceedTheBound(t *testing.T) {
	c, count := open(t, t.TempDir()), atomic.Int32{}
	c.limit = 3 << 19
	fill := filling(1<<20, &count)
	for _, name := range []string{"first", "second"} {
		dir, err := c.Get(t.Context(), name, nil, func(
			ctx context.Context, dir string, say func(string, ...any),
		) error {
			if count.Load() > 2 {
				return errors.New("built again")
			}
			return fill(ctx, dir, say)
		})
		if err != nil || !slices.Equal(children(dir), []string{"f"}) {
			t.Fatalf("%s: %s holds %v, %v", name, dir, children(dir), err)
		}
	}
	if !c.full {
		t.Error("the cache does not know that it holds more than its bound")
	}
}

func TestHolesTakeNothing(t *testing.T) {
	dir := t.TempDir()
	sparse := filepath.Join(dir, "root.erofs")
	if err := os.WriteFile(sparse, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sparse, 1<<30); err != nil {
		t.Fatal(err)
	}
	if got := size(dir); got >= 1<<20 {
		t.Errorf("a file of one hole takes %d bytes", got)
	}
}

func TestFullDiskSaysWhatToDo(t *testing.T) {
	_, err := open(t, t.TempDir()).Get(t.Context(), "x", nil,
		func(context.Context, string, func(string, ...any)) error {
			return &os.PathError{Op: "write", Path: "root.erofs", Err: syscall.ENOSPC}
		})
	if err == nil || !strings.Contains(err.Error(), "no space left on device; free some") {
		t.Errorf("got %v", err)
	}
}

func TestUnwritableCacheSaysWhatToDo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "FASTIOV_CACHE") {
		t.Errorf("got %v", err)
	}
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("FASTIOV_CACHE", "/somewhere")
	if dir, err := DefaultDir(); dir != "/somewhere" || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
	t.Setenv("FASTIOV_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/home/x/.cache")
	if dir, err := DefaultDir(); dir != "/home/x/.cache/fastiov" || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
	t.Setenv("XDG_CACHE_HOME", "") // as in a service of systemd
	t.Setenv("HOME", "")
	dir, err := DefaultDir()
	switch root := os.Geteuid() == 0; {
	case root && (dir != "/var/cache/fastiov" || err != nil):
		t.Errorf("got %s, %v", dir, err)
	case !root && (err == nil || !strings.Contains(err.Error(), "FASTIOV_CACHE")):
		t.Errorf("got %s, %v", dir, err)
	}
}

func TestProgressSpeaksWithElapsedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newStep(&lockedWriter{w: &out}, "python:3")
		s.say("unpacking %d packages", 31)
		time.Sleep(12 * time.Second)
		s.say("writing")
		s.end()
		s.end()
		want := "image  python:3  0s  unpacking 31 packages\nimage  python:3  10s  unpacking 31 packages\nimage  python:3  12s  writing\n"
		if out.String() != want {
			t.Errorf("got  %q\nwant %q", out.String(), want)
		}
	})
}
