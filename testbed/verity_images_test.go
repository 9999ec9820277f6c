//go:build images

package testbed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

const (
	verityRounds = 15
	savedDir     = readDir + "/saved" // an OCI layout
)

// TestARootIsCheckedWhenItIsRead: a cache on an ext4 with fs-verity gives no byte of an image that
// the disk has changed. What the checks cost is printed as JSON; how long it takes fails nothing.
func TestARootIsCheckedWhenItIsRead(t *testing.T) {
	needs := Needs{Files: map[string]string{}}
	if !Within() && os.Getenv(wantEnv) != "" {
		needs.Files = diskAndImage(t)
	}
	Inside(t, needs, func(t *testing.T) {
		if out, err := exec.Command("modprobe", "-a", "loop", "ext4").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		memory, device := loopOf(t, "disk")
		at := t.TempDir()
		mount := func() {
			if err := unix.Mount(device, at, "ext4", 0, ""); err != nil {
				t.Fatal(err)
			}
		}
		mount()
		t.Cleanup(func() { _ = unix.Unmount(at, 0) })
		r := pulledTo(t, filepath.Join(at, "cache"))
		for _, file := range append([]string{r.Root}, r.Layers...) {
			if !guarded(t, file) {
				t.Errorf("%s has no hashes", file)
			}
		}

		plain := []string{copied(t, r.Root, at)}
		for _, layer := range r.Layers {
			plain = append(plain, copied(t, layer, at))
		}
		took := map[string][]float64{}
		var ratios []float64
		for round := range verityRounds {
			order := []string{"checked", "plain"}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				files := map[string][]string{"checked": append([]string{r.Root}, r.Layers...),
					"plain": plain}[name]
				root := t.TempDir()
				if err := rootfs.Mount(root, files[0], files[1:]...); err != nil {
					t.Fatal(err)
				}
				unix.Sync()
				if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
					t.Fatal(err)
				}
				took[name] = append(took[name], readTree(t, root))
				if err := unix.Unmount(root, 0); err != nil {
					t.Fatal(err)
				}
			}
			ratios = append(ratios, took["checked"][round]/took["plain"][round])
		}
		slices.Sort(ratios)
		b, err := json.Marshal(map[string]any{"cold_ms": took, "checked_by_plain": spread(ratios)})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", b)

		layer := slices.MaxFunc(r.Layers, func(a, b string) int { return size(t, a) - size(t, b) })
		content := make([]byte, 512)
		f, err := os.Open(layer)
		if err == nil {
			_, err = f.ReadAt(content, int64(size(t, layer)/2))
			f.Close()
		}
		for _, file := range plain {
			err = errors.Join(err, os.Remove(file))
		}
		if err := errors.Join(err, unix.Unmount(at, 0)); err != nil {
			t.Fatal(err)
		}
		if flipped := flip(t, memory, content); flipped == 0 {
			t.Fatal("the layer is not found on the disk")
		}
		mount()
		if _, err := os.ReadFile(layer); !errors.Is(err, unix.EIO) {
			t.Errorf("what the disk has changed is read: %v", err)
		}
	})
}

// diskAndImage makes an empty ext4 with fs-verity, and finds an image.
func diskAndImage(t *testing.T) map[string]string {
	t.Helper()
	b, err := build.Open("", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	sample, err := b.Sample(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "disk")
	out, err := exec.Command("mkfs.ext4", "-q", "-O", "verity", "-b", "4096", disk, "1800M").
		CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	files := map[string]string{readDir + "/disk": disk}
	err = filepath.WalkDir(sample.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files[savedDir+strings.TrimPrefix(path, sample.Dir)] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// pulledTo loads the image into a cache, which closes when the disk has it.
func pulledTo(t *testing.T, dir string) image.Runtime {
	t.Helper()
	c, err := image.Open(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	const called = "example.org/read:1"
	_, err = c.Load(t.Context(), filepath.Join("/share", savedDir), called)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, release, err := c.Pull(t.Context(), called, "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, file := range append([]string{r.Root}, r.Layers...) { // once the disk has it
		for wait := 0; !guarded(t, file) && wait < 600; wait++ {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return r
}

// guarded reports whether the kernel checks a file when it is read.
func guarded(t *testing.T, file string) bool {
	t.Helper()
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, file, 0, unix.STATX_BASIC_STATS, &s); err != nil {
		t.Fatal(err)
	}
	return s.Attributes&unix.STATX_ATTR_VERITY != 0
}

func copied(t *testing.T, file, dir string) string {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.CreateTemp(dir, "plain-*")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

func size(t *testing.T, file string) int {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// flip changes a bit of a content wherever the disk has it.
func flip(t *testing.T, disk *os.File, content []byte) (places int) {
	t.Helper()
	b := make([]byte, 1<<20)
	for at := int64(0); ; at += int64(len(b)) {
		n, err := disk.ReadAt(b, at)
		if i := bytes.Index(b[:n], content); i >= 0 {
			places++
			if _, err := disk.WriteAt([]byte{content[0] ^ 1}, at+int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err == io.EOF {
			return places
		}
		if err != nil {
			t.Fatal(fmt.Errorf("the disk: %w", err))
		}
	}
}
