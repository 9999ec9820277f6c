package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// ofFormerVersion is a state directory as one root process had it.
func ofFormerVersion(t *testing.T) (dir string, to account) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	dir = filepath.Join(t.TempDir(), "state")
	for _, sub := range []string{"reports", "storage/bucket"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"invoker.db", "tls-cert.pem", "tls-key.pem", "promises.key",
		"tokens.key", "storage/bucket/x",
		"reports/r.tar.gz"} {
		write(t, filepath.Join(dir, file), file)
	}
	if _, err := openwhisk.LoadKey("0.0.0.0:1", keyFile(dir)); err != nil {
		t.Fatal(err)
	}
	return dir, account{"nobody", 65534, 65534}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// owned returns "uid:gid mode" of the file that a path names, which may be a link.
func owned(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777)
}

func TestAStateDirectoryIsTakenOver(t *testing.T) {
	dir, to := ofFormerVersion(t)
	for range 2 { // the second time, nothing is left to do
		if err := handOver(dir, to); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"": "0:65534 1770", "key": "0:65534 640", "reports": "0:0 700",
			"reports/r.tar.gz": "0:0 600",
			"invoker.db":       "65534:65534 600", "tls-cert.pem": "65534:65534 600",
			"tls-key.pem": "65534:65534 600", "promises.key": "65534:65534 600",
			"tokens.key": "65534:65534 600",
			"storage":    "65534:65534 700", "storage/bucket": "65534:65534 700",
			"storage/bucket/x": "65534:65534 600",
		} {
			if got := owned(t, filepath.Join(dir, path)); got != want {
				t.Errorf("%q is %s, want %s", path, got, want)
			}
		}
	}
	if _, err := openwhisk.LoadKey("0.0.0.0:1", keyFile(dir)); err != nil {
		t.Errorf("root reads the key no more: %v", err)
	}
}

// TestNothingElseIsGivenAway: whatever lies in the directory, nobody gets a file that was not the
// invoker's.
func TestNothingElseIsGivenAway(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(dir, victim string) error
		want  string
	}{
		"a symbolic link": {func(dir, victim string) error {
			return os.Symlink(victim, filepath.Join(dir, "storage/bucket/link"))
		}, "symbolic link"},
		"the store as one": {func(dir, victim string) error {
			db := filepath.Join(dir, "invoker.db")
			return firstOf(os.Remove(db), os.Symlink(victim, db))
		}, "symbolic link"},
		"the directory as one": {func(dir, victim string) error {
			return firstOf(os.Rename(dir, dir+"-real"), os.Symlink(filepath.Dir(victim), dir))
		}, "state"},
		"a second name": {func(dir, victim string) error {
			return os.Link(victim, filepath.Join(dir, "storage/bucket/hard"))
		}, "second name"},
		"the key as a second name": {func(dir, victim string) error {
			return firstOf(os.Remove(keyFile(dir)), os.Link(victim, keyFile(dir)))
		}, "second name"},
		"a socket": {func(dir, _ string) error {
			return syscall.Mkfifo(filepath.Join(dir, "storage/fifo"), 0o600)
		}, "neither a file nor a directory"},
		"somebody else's file": {func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600)
		}, "not fastiov's"},
		"a directory that others write to": {func(dir, _ string) error {
			return os.Chmod(dir, 0o777)
		}, "others than root may write"},
		"reports as a link": {func(dir, victim string) error {
			reports := filepath.Join(dir, "reports")
			return firstOf(os.RemoveAll(reports), os.Symlink(filepath.Dir(victim), reports))
		}, "no directory of root's"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, to := ofFormerVersion(t)
			victim := filepath.Join(t.TempDir(), "shadow")
			write(t, victim, "root:secret")
			before := owned(t, victim) + owned(t, filepath.Dir(victim))
			if err := c.plant(dir, victim); err != nil {
				t.Fatal(err)
			}
			if err := handOver(dir, to); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if after := owned(t, victim) + owned(t, filepath.Dir(victim)); after != before {
				t.Errorf("the victim was %s and is %s", before, after)
			}
		})
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestWhatTheInvokerPlantsLaterIsLeftAlone: once handed over, the directory is not gone through
// again, and root reads no key from it that is not its own.
func TestWhatTheInvokerPlantsLaterIsLeftAlone(t *testing.T) {
	dir, to := ofFormerVersion(t)
	if err := handOver(dir, to); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(t.TempDir(), "shadow")
	write(t, victim, "root:"+strings.Repeat("x", 40))
	if err := os.Symlink(victim, filepath.Join(dir, "storage/link")); err != nil {
		t.Fatal(err)
	}
	before := owned(t, victim)
	if err := handOver(dir, to); err != nil || owned(t, victim) != before {
		t.Errorf("%v, the victim was %s and is %s", err, before, owned(t, victim))
	}
	if err := firstOf(os.Remove(keyFile(dir)), os.Symlink(victim, keyFile(dir))); err != nil {
		t.Fatal(err)
	}
	if key, err := openwhisk.LoadKey("0.0.0.0:1", keyFile(dir)); err == nil {
		t.Errorf("root has read %s as its key: %s", victim, key)
	}
	write(t, victim, "")
	if err := firstOf(os.Remove(keyFile(dir)),
		os.WriteFile(keyFile(dir), []byte("a:"+strings.Repeat("b", 40)), 0o600),
		os.Chown(keyFile(dir), to.uid, to.gid)); err != nil {
		t.Fatal(err)
	}
	if _, err := openwhisk.LoadKey("0.0.0.0:1", keyFile(dir)); err == nil ||
		!strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("a key that the invoker put there: %v", err)
	}
}

// TestAStateDirectoryMayBeAFileSystem: what comes with one stays root's; what a crash left is the
// invoker's.
func TestAStateDirectoryMayBeAFileSystem(t *testing.T) {
	dir, to := ofFormerVersion(t)
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "promises.key.123"), "")
	write(t, filepath.Join(dir, "tokens.key.123"), "")
	if err := handOver(dir, to); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"lost+found": "0:0 700",
		"promises.key.123": "65534:65534 600", "tokens.key.123": "65534:65534 600"} {
		if got := owned(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%q is %s, want %s", path, got, want)
		}
	}
}

// TestRootMakesNoStoreForTheInvoker: if the invoker may plant a link at any time, root opens
// nothing.
func TestRootMakesNoStoreForTheInvoker(t *testing.T) {
	dir, to := ofFormerVersion(t)
	if err := handOver(dir, to); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(dir, "invoker.db")
	for name, plant := range map[string]func() error{
		"no store":            func() error { return nil },
		"another file's name": func() error { return os.WriteFile(db, nil, 0o600) },
	} {
		if err := os.RemoveAll(db); err != nil {
			t.Fatal(err)
		}
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(db)
		list := rootCmd()
		list.SetArgs([]string{"user", "list", "--state-dir", dir, "--run-dir", t.TempDir()})
		if err := list.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), db) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(db); len(after) != len(before) {
			t.Errorf("%s: root has written %d bytes", name, len(after))
		}
	}
}
