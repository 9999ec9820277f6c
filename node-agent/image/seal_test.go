package image

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// afterPowerCut has an entry look as if the machine had lost its power before the disk had it.
func (c *Cache) afterPowerCut(t *testing.T, key string) {
	t.Helper()
	dir := c.entry(key)
	s, err := readSeal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSeal(dir, "another boot", s.Files...); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(dir, settledName))
}

// TestAfterAPowerCutEntriesAreChecked tries some of the damages; the tier for images tries all.
func TestAfterAPowerCutEntriesAreChecked(t *testing.T) { tryDamages(t, 8) }

// tryDamages damages each file of each entry in each way, and pulls again. It tries one in so many.
func tryDamages(t *testing.T, oneIn int) {
	r, host := newCountingRegistry(t)
	close(r.gate)
	ref := pushLayers(t, host+"/team/a:1", func(*v1.ConfigFile) {},
		layer(t, file("one", strings.Repeat("1", 5000))), layer(t, file("two", "2")))
	base := t.TempDir()
	whole := openFor(t, base, ref)
	root, err := pullFor(t, whole, ref, "a")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(root.Root)
	if err != nil {
		t.Fatal(err)
	}
	whole.settling.all.Wait()
	whole.Close()
	damages := map[string]func(path string) error{
		"empty":         func(path string) error { return os.Truncate(path, 0) },
		"missing":       os.Remove,
		"short":         func(path string) error { return os.Truncate(path, sizeOf(path)-1) },
		"long":          func(path string) error { return os.Truncate(path, sizeOf(path)+1) },
		"zeros":         func(path string) error { return zeros(path) },
		"a flipped bit": flip,
		"nothing":       func(string) error { return nil },
	}
	keys := children(filepath.Join(base, "entries"))
	tried, left := 0, 0
	for _, key := range keys {
		for _, name := range children(filepath.Join(base, "entries", key)) {
			if name == settledName {
				continue
			}
			for what, damage := range damages {
				if name == sealName && (what == "a flipped bit" || what == "long") {
					continue // may be JSON, of other words, which only an enemy writes
				}
				if left++; left%oneIn != 0 {
					continue
				}
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
					t.Fatal(err)
				}
				c := openFor(t, dir, ref)
				for _, key := range keys {
					c.afterPowerCut(t, key)
				}
				if err := damage(filepath.Join(c.entry(key), name)); err != nil {
					t.Fatal(err)
				}
				clear(r.asked)
				again, err := pullFor(t, c, ref, "a")
				if err != nil {
					t.Fatalf("%s of %s is %s: %v", name, key, what, err)
				}
				got, err := os.ReadFile(again.Root)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s of %s is %s: another root, %v", name, key, what, err)
				}
				if asked := r.count("manifests"); (what == "nothing") != (asked == 0) {
					t.Errorf("%s of %s is %s: the registry was asked %d times", name, key, what,
						asked)
				}
				c.Close()
				tried++
			}
		}
	}
	if t.Logf("%d damages", tried); tried < 70/oneIn {
		t.Error("too few")
	}
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 1
	}
	return info.Size()
}

func zeros(path string) error {
	return os.WriteFile(path, make([]byte, sizeOf(path)), 0o644)
}

// flip changes the first bit that is sealed.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[0] ^= 1
	return os.WriteFile(path, b, 0o644)
}

// A file that nobody has a digest of, as what is behind a sparse layer's archive, is never whole.
func TestWhatHasNoDigest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "blob"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if holds, err := (sealed{Name: "blob"}).holds(dir); holds || err != nil {
		t.Errorf("a file without a digest is called intact: %t, %v", holds, err)
	}
}

// A file that the disk cannot read any more is not whole, and so is fetched anew.
func TestASectorThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/proc/self/mem", filepath.Join(dir, "blob")); err != nil {
		t.Fatal(err)
	}
	if holds, err := (sealed{Name: "blob", Size: 1}).holds(dir); holds || err != nil {
		t.Errorf("it holds: %t, %v", holds, err)
	}
}

// TestADiskThatFails: what it did not take is not taken for whole.
func TestADiskThatFails(t *testing.T) {
	ref := pushLayers(t, newRegistry(t)+"/team/a:1", func(*v1.ConfigFile) {},
		layer(t, tar.Header{Name: "etc", Typeflag: tar.TypeDir, Mode: 0o755}))
	c := openFor(t, t.TempDir(), ref)
	if _, err := pullFor(t, c, ref, "a"); err != nil {
		t.Fatal(err)
	}
	c.settling.all.Wait()
	for _, key := range children(filepath.Join(c.dir, "entries")) {
		settled := filepath.Join(c.entry(key), settledName)
		if err := os.Remove(settled); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(settled, 0o755); err != nil { // which nobody writes over
			t.Fatal(err)
		}
		c.settle(key)
		c.settling.all.Wait()
		if s, err := readSeal(c.entry(key)); err != nil || s.Boot != "" || len(s.Files) == 0 {
			t.Errorf("%s: %+v, %v", fmt.Sprint(key), s, err)
		}
	}
}
