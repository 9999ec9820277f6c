//go:build images

package image

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// TestAFullDiskIsSaid pulls with ever more room on the disk, until the room suffices. A pull that
// finds too little fails in a line and leaves nothing that is not whole; the next resumes.
func TestAFullDiskIsSaid(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	stock := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	full := func() {}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			full()
		}
		stock.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	ref := pushLayers(t, host+"/team/a:1", func(*v1.ConfigFile) {},
		layer(t, file("one", strings.Repeat("1", 100<<10))), layer(t, file("two", "2")))
	sound, err := pullFor(t, openFor(t, t.TempDir(), ref), ref, "a")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(sound.Root)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	failed := 0
	for room := int64(0); ; room += page {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=600m"); err != nil {
			t.Fatal(err)
		}
		c := openFor(t, dir, ref)
		filler := filepath.Join(dir, "filler")
		var once sync.Once
		full = func() { once.Do(func() { fill(t, filler, room) }) }
		_, err := pullFor(t, c, ref, "a")
		if err != nil && (!errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), "no space left")) {
			t.Errorf("%d bytes of room: %v", room, err)
		}
		if left := children(filepath.Join(dir, "tmp")); len(left) != 0 {
			t.Errorf("%d bytes of room: left %v", room, left)
		}
		if removed := os.Remove(filler); removed != nil {
			t.Fatal(removed)
		}
		c.settling.all.Wait()
		again, more := pullFor(t, c, ref, "a")
		if more != nil {
			t.Errorf("%d bytes of room, then more: %v", room, more)
		} else if got, err := os.ReadFile(again.Root); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of room, then more: another image, %v", room, err)
		}
		c.Close()
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		if err == nil {
			break
		}
		failed++
	}
	t.Logf("%d pulls found the disk full", failed)
	if failed < 20 {
		t.Error("too few")
	}
}

// fill leaves so much room on the disk of a file.
func fill(t *testing.T, file string, room int64) {
	f, err := os.Create(file)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	var disk unix.Statfs_t
	if err := unix.Statfs(file, &disk); err != nil {
		t.Error(err)
		return
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(disk.Bavail)*disk.Bsize-room); err != nil {
		t.Error(err)
	}
}
