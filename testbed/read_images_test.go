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
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

const (
	readRounds = 25
	readLayers = "FASTIOV_TEST_LAYERS" // how many the image has
	readDir    = "read"                // below /share
)

// A reading says how long it took to read every file of a tree, in milliseconds.
type reading struct {
	Cold []float64 `json:"cold_ms"` // nothing of the tree was in memory
	Warm []float64 `json:"warm_ms"`
}

// TestReadingARoot reads all files of an image of Debian's packages through EROFS, as a pull leaves
// it, and of the same tree on ext4, in turn. Both are block devices in the memory of a host that is
// a guest itself, so what is compared is the work of the file systems. The figures are printed as
// JSON; how long something takes fails nothing.
func TestReadingARoot(t *testing.T) {
	needs := Needs{Env: []string{readLayers}, Files: map[string]string{}}
	if !Within() && os.Getenv(wantEnv) != "" {
		needs.Files = rootsToRead(t)
		t.Setenv(readLayers, strconv.Itoa(len(needs.Files)-2))
	}
	Inside(t, needs, func(t *testing.T) {
		if out, err := exec.Command("modprobe", "-a", "loop", "ext4").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		layers, err := strconv.Atoi(os.Getenv(readLayers))
		if err != nil {
			t.Fatal(err)
		}
		var devices []string
		for n := range layers {
			devices = append(devices, inMemory(t, fmt.Sprint("layer", n)))
		}
		at := map[string]string{"erofs": t.TempDir(), "ext4": t.TempDir()}
		if err := rootfs.Mount(at["erofs"], inMemory(t, "root"), devices...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at["erofs"], 0) })
		err = unix.Mount(inMemory(t, "ext4"), at["ext4"], "ext4", unix.MS_RDONLY, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at["ext4"], 0) })

		for _, root := range at { // a host that has just booted has other things to do
			readTree(t, root)
			readTree(t, root)
		}
		took := map[string]*reading{"erofs": {}, "ext4": {}}
		var cold, warm []float64 // how much sooner EROFS is done, of each round
		for round := range readRounds {
			order := []string{"erofs", "ext4"}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				unix.Sync()
				if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
					t.Fatal(err)
				}
				took[name].Cold = append(took[name].Cold, readTree(t, at[name]))
				took[name].Warm = append(took[name].Warm, readTree(t, at[name]))
			}
			cold = append(cold, took["ext4"].Cold[round]/took["erofs"].Cold[round])
			warm = append(warm, took["ext4"].Warm[round]/took["erofs"].Warm[round])
		}
		slices.Sort(cold)
		slices.Sort(warm)
		files, bytes := treeSize(t, at["erofs"])
		if f, b := treeSize(t, at["ext4"]); f != files || b != bytes {
			t.Errorf("EROFS has %d files of %d bytes, ext4 %d of %d", files, bytes, f, b)
		}
		b, err := json.Marshal(map[string]any{"files": files, "bytes": bytes, "took": took,
			"cold_ratio": spread(cold), "warm_ratio": spread(warm)})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", b)
	})
}

// spread returns the least, the median and the most.
func spread(sorted []float64) [3]float64 {
	return [3]float64{sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]}
}

// rootsToRead makes the image and an ext4 of what is in it, on this machine.
func rootsToRead(t *testing.T) map[string]string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	b, err := build.Open("", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	sample, err := b.Sample(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := image.Open(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Close)
	const called = "example.org/read:1"
	if _, err := cache.Load(t.Context(), sample.Dir, called); err != nil {
		t.Fatal(err)
	}
	r, release, err := cache.Pull(t.Context(), called, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	at := t.TempDir()
	if err := rootfs.Mount(at, r.Root, r.Layers...); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	ext4 := filepath.Join(t.TempDir(), "ext4")
	size := fmt.Sprintf("%dM", sample.Whole*3/2>>20+64)
	out, err := exec.Command("mkfs.ext4", "-q", "-d", at, ext4, size).CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	files := map[string]string{readDir + "/root": r.Root, readDir + "/ext4": ext4}
	for n, layer := range r.Layers {
		files[fmt.Sprintf("%s/layer%d", readDir, n)] = layer
	}
	return files
}

// inMemory copies a file of /share into memory, and returns a block device of it.
func inMemory(t *testing.T, name string) string {
	_, device := loopOf(t, name)
	return device
}

// loopOf is inMemory, and returns the memory as well.
func loopOf(t *testing.T, name string) (memory *os.File, device string) {
	t.Helper()
	in, err := os.Open(filepath.Join("/share", readDir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { file.Close() })
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	err = copySparse(file, in)
	n, free := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	path := fmt.Sprint("/dev/loop", n)
	loop, open := os.OpenFile(path, os.O_RDWR, 0)
	if err := errors.Join(err, free, open); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
		loop.Close()
	})
	return file, path
}

// copySparse leaves zeros out.
func copySparse(to *os.File, from io.Reader) error {
	b := make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := io.ReadFull(from, b)
		if len(bytes.Trim(b[:n], "\x00")) > 0 {
			if _, err := to.WriteAt(b[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return to.Truncate(at)
		default:
			return err
		}
	}
}

// readTree reads every file of a tree, and returns how many milliseconds that took.
func readTree(t *testing.T, at string) float64 {
	t.Helper()
	b := make([]byte, 128<<10)
	begin := time.Now()
	err := filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		for err == nil {
			_, err = f.Read(b)
		}
		if err == io.EOF {
			err = nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(time.Since(begin).Microseconds()) / 1000
}

func treeSize(t *testing.T, at string) (files int, bytes int64) {
	t.Helper()
	err := filepath.WalkDir(at, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			files, bytes = files+1, bytes+info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, bytes
}
