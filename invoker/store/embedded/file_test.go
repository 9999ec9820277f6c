package embedded

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

var quiet = slog.New(slog.DiscardHandler)

func put(t testing.TB, s *Store, name string) {
	t.Helper()
	doc := store.Doc{
		Key: store.Key{Kind: store.Actions, Namespace: "guest", Name: name}, Body: []byte("{}"),
	}
	if _, err := s.Put(t.Context(), doc, []byte("code"), store.Unbounded); err != nil {
		t.Fatal(err)
	}
}

func closeIt(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Each unusable file is refused with one line that says why and what to do.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"a newer format": {func(path string) error {
			return update(path, func(tx *bbolt.Tx) error {
				return putNumber(tx.Bucket(meta), formatKey, format+1)
			})
		}, "has format 3, this version reads 2"},
		"a head that is none": {func(path string) error {
			return update(path, func(tx *bbolt.Tx) error {
				return tx.Bucket(heads).Put(keyOf(0), []byte{200})
			})
		}, "damaged or not a store"},
		"a number that is none": {func(path string) error {
			return update(path, func(tx *bbolt.Tx) error {
				return tx.Bucket(heads).Put([]byte("0"), nil)
			})
		}, "damaged or not a store"},
		"no file of bbolt": {func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("not a store\n", 10_000)), 0o600)
		}, "damaged or not a store"},
		"another program's file": {func(path string) error {
			return update(path, func(tx *bbolt.Tx) error {
				_, err := tx.CreateBucket([]byte("another"))
				return errorsOf(err, tx.DeleteBucket(meta))
			})
		}, "damaged or not a store"},
		"a missing part": {func(path string) error {
			return update(path, func(tx *bbolt.Tx) error { return tx.DeleteBucket(heads) })
		}, `"heads" is missing`},
		"a file cut short": {func(path string) error { return os.Truncate(path, 20<<10) },
			"it ends after 20480 of"},
		"a file cut to its heads": {func(path string) error {
			return os.Truncate(path, 8<<10)
		}, "damaged"},
		"zeroes over its pages": {func(path string) error {
			content, err := os.ReadFile(path)
			clear(content[8<<10:])
			return errorsOf(err, os.WriteFile(path, content, 0o600))
		}, "damaged or not a store"},
		"a directory": {func(path string) error {
			return errorsOf(os.Remove(path), os.Mkdir(path, 0o700))
		}, "damaged or not a store"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store")
			s := open(t, path)
			for i := range 200 {
				put(t, s, fmt.Sprint(i))
			}
			closeIt(t, s)
			if err := c.spoil(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(path)
			s, err := Open(path, plenty, quiet)
			if err == nil {
				closeIt(t, s)
				t.Fatal("it was opened")
			}
			if message := err.Error(); !strings.Contains(message, c.want) ||
				strings.Contains(message, "\n") || !strings.Contains(message, path) {
				t.Errorf("got %q, want %q", message, c.want)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the file was changed")
			}
		})
	}
}

func update(path string, change func(*bbolt.Tx) error) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	return errorsOf(db.Update(change), db.Close())
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestOpenNeedsItsDirectory(t *testing.T) {
	if _, err := Open("/nowhere/store", plenty, quiet); err == nil ||
		err.Error() != "store: open /nowhere/store: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

// A lock belongs to an open file, so a second Open in this process fails as in another process.
func TestASecondOpenerIsTurnedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path)
	defer closeIt(t, s)
	if _, err := Open(path, plenty, quiet); err == nil ||
		!strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheOwnerMayReadTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for range 2 {
		closeIt(t, open(t, path))
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func finished(i int, size int) *store.Record {
	index := store.Indexed{
		ID: fmt.Sprintf("%032x", i), Namespace: "guest", Name: "a",
		Start: time.Unix(1_800_000_000, int64(i)),
	}
	return &store.Record{Indexed: index, Body: storetest.Body(index.ID, size)}
}

func TestTheOldestRecordsGo(t *testing.T) {
	const size, retain = 10 << 10, 1 << 20
	path := filepath.Join(t.TempDir(), "store")
	s, err := Open(path, retain, quiet)
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	for i := range n {
		s.Finish(finished(i, size))
		if i%50 == 0 {
			put(t, s, fmt.Sprint(i))
		}
	}
	closeIt(t, s)
	left := kept(t, path)
	if want := retain / size; left > want || left < want*9/10 {
		t.Errorf("%d records of %d bytes in %d", left, size, retain)
	}

	// A lower bound is reached as records come.
	if s, err = Open(path, retain/4, quiet); err != nil {
		t.Fatal(err)
	}
	for i := range n / 5 {
		s.Finish(finished(n+i, size))
	}
	put(t, s, "last")
	for _, r := range []int{0, n} {
		if _, err := s.Get(t.Context(), "guest", finished(r, 0).ID); err != store.ErrNotFound {
			t.Errorf("record %d: %v", r, err)
		}
	}
	if _, err := s.Get(t.Context(), "guest", finished(n+n/5-1, 0).ID); err != nil {
		t.Error(err)
	}
	closeIt(t, s)
	if left := kept(t, path); left > retain/4/size {
		t.Errorf("%d records are left", left)
	}
}

// kept counts the records, and checks that all counts and bounds in the file agree.
func kept(t testing.TB, path string) (n int) {
	t.Helper()
	db, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		size, opened := int64(0), 0
		var before block
		ids := map[string]bool{}
		err := tx.Bucket(heads).ForEach(func(key, value []byte) error {
			b, again := block{key: key}, block{key: key}
			if err := errorsOf(b.decode(value), b.open(tx)); err != nil {
				return err
			}
			if n > 0 {
				again = *before.next()
			}
			// of blocks that are gone
			again.newestBefore, again.highestBefore = max(again.newestBefore, b.newestBefore),
				b.highestBefore
			if b.newestBefore < before.newest || string(b.highestBefore) < string(before.highest) ||
				n > 0 && string(b.key) < string(again.key) {
				t.Errorf("block %x does not follow %x", b.key, before.key)
			}
			e := b.entries()
			for e.next() {
				id, _, _ := strings.Cut(string(e.value), "\n")
				of := b.names[e.name]
				r := store.Record{Indexed: store.Indexed{
					ID: id, Namespace: string(of.namespace), Name: string(of.name),
					Start: time.Unix(0, int64(startOf(e.order))),
				}, Body: store.Bytes(e.value)}
				if ids[r.ID] || tx.Bucket(promises).Get([]byte(r.ID)) != nil {
					t.Errorf("%s has two records, or a record and a promise", r.ID)
				}
				ids[r.ID] = true
				again.add(&r)
				n++
			}
			if e.bad || len(e.after) != 0 || string(again.encode()) != string(b.encode()) ||
				string(again.table) != string(b.table) {
				t.Errorf("the head and the table of block %x are not those of its records", b.key)
			}
			size += b.cost()
			opened++
			before = b
			return nil
		})
		if counted := number(tx.Bucket(meta), bytesKey); counted != size ||
			tx.Bucket(blocks).Stats().KeyN != 3*opened {
			t.Errorf("%d blocks of %d bytes are counted as %d bytes; there are %d keys",
				opened, size, counted, tx.Bucket(blocks).Stats().KeyN)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// smallDisk returns the path of a file system of that many bytes.
func smallDisk(t *testing.T, size int) string {
	dir := t.TempDir()
	if err := syscall.Mount("fastiov-test", dir, "tmpfs", 0,
		fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("a small disk needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestNoRoomForAFile(t *testing.T) {
	dir := smallDisk(t, 64<<10)
	path := filepath.Join(dir, "store")
	fill(t, dir)
	_, err := Open(path, plenty, quiet)
	if err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	closeIt(t, open(t, path))
}

// fill leaves no free page.
func fill(t *testing.T, dir string) {
	file, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
}

func TestADiskThatIsFullForAWhile(t *testing.T) {
	dir := smallDisk(t, 8<<20)
	path := filepath.Join(dir, "store")
	s := open(t, path)
	put(t, s, "before")
	fill(t, dir)

	// Promises are refused once the file has no free pages, and earlier promises stay.
	accepted := 0
	var err error
	for ; err == nil && accepted < 1000; accepted++ {
		err = s.Accept(t.Context(), store.Accepted{
			ID: fmt.Sprint("p", accepted), Invoker: "me", Body: make([]byte, 10_000),
		})
	}
	accepted--
	if err == nil || !strings.Contains(err.Error(), "no space left on device; nothing was kept") {
		t.Fatalf("got %v", err)
	}
	// Records stay in memory, as many as it holds, and no caller waits.
	const n, size = 64, 512 << 10
	for i := range n {
		s.Finish(finished(i, size))
	}
	if lost := s.Lost(); lost == 0 || lost > n/2+4 {
		t.Errorf("%d of %d records of %d bytes were lost", lost, n, size)
	}
	for _, id := range []int{0, 10} {
		if _, err := s.Get(t.Context(), "guest", finished(id, 0).ID); err != nil {
			t.Errorf("record %d: %v", id, err)
		}
	}
	unfinished, err := s.Unfinished(t.Context(), "me")
	if err != nil || len(unfinished) != accepted {
		t.Errorf("%d unfinished (%v), want %d", len(unfinished), err, accepted)
	}

	// Once there is room again, everything goes on.
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=200m"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "after")
	held := n - int(s.Lost())
	closeIt(t, s)
	if left := kept(t, path); left != held {
		t.Errorf("%d records are kept, want %d", left, held)
	}
}

func TestClosingOnAFullDiskSaysWhatIsLost(t *testing.T) {
	dir := smallDisk(t, 1<<20)
	s := open(t, filepath.Join(dir, "store"))
	fill(t, dir)
	for i := range 3 {
		s.Finish(finished(i, 512<<10))
	}
	if err := s.Close(); err == nil ||
		!strings.Contains(err.Error(), "3 activation records could not be written") {
		t.Errorf("got %v", err)
	}
}
