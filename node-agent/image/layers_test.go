package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// What an image may unpack to is shared by its layers, however many it has.
func TestLayersShareTheirRoom(t *testing.T) {
	const each, content = 1 << 20, 2 << 20
	var layers []v1.Layer
	for n := range 20 {
		layers = append(layers, layer(t, file(fmt.Sprint("zeros ", n), strings.Repeat("0", each))))
	}
	ref := pushLayers(t, newRegistry(t)+"/team/bomb:1", func(*v1.ConfigFile) {}, layers...)
	c := openFor(t, t.TempDir(), ref)
	image, err := c.Source.Find(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	b, err := c.bringLayers(t.Context(), image, content, &pulling{})
	defer b.free()
	var refused *oci.Refusal
	if !errors.As(err, &refused) || refused.Reason != oci.TooLarge {
		t.Errorf("%v, want too large", err)
	}
	if got := size(c.dir); got > content+each/2 { // what was cut off is gone, indexes are small
		t.Errorf("%d bytes were written", got)
	}
}

// The content of a sparse file lies behind all that the archive may have, and counts for itself.
func TestSparseFilesArePulled(t *testing.T) {
	var b bytes.Buffer
	h := tar.Header{Name: "sparse", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5,
		Format: tar.FormatGNU}
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&h)
	_, written := io.WriteString(w, "bytes")
	if err := errors.Join(err, written, w.Close()); err != nil {
		t.Fatal(err)
	}
	raw := b.Bytes()[:512] // archive/tar does not write sparse files
	raw[156] = tar.TypeGNUSparse
	copy(raw[386:], fmt.Sprintf("%011o\x00%011o\x00", 1024, len("bytes")))
	copy(raw[483:], fmt.Sprintf("%011o\x00", 1024+len("bytes")))
	copy(raw[148:], "        ")
	sum := 0
	for _, c := range raw {
		sum += int(c)
	}
	copy(raw[148:], fmt.Sprintf("%06o\x00 ", sum))
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ref := pushLayers(t, newRegistry(t)+"/team/sparse:1", func(*v1.ConfigFile) {}, l)
	r, err := keep(t, openFor(t, t.TempDir(), ref), ref)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(mounted(t, r), "sparse"))
	if want := string(make([]byte, 1024)) + "bytes"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}

// Another's attempt at a layer that fails, for whatever reason of his, is not ours.
func TestAnothersFailureIsNotOurs(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	image, err := c.Source.Find(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	key := layerRecipe(image, image.Layers()[0]).key()
	fail := make(chan struct{})
	f := c.joinFlight(key, func(context.Context) (func(), error) {
		<-fail
		return nil, errors.New("his token has expired")
	})
	defer c.leaveFlight(key, f)
	pulled := make(chan error)
	go func() {
		_, err := keep(t, c, ref)
		pulled <- err
	}()
	for joined := false; !joined; time.Sleep(time.Millisecond) {
		c.pulls.flights.mu.Lock()
		joined = f.waiting == 2
		c.pulls.flights.mu.Unlock()
	}
	close(fail)
	if err := <-pulled; err != nil {
		t.Error(err)
	}
}

// Of entries that do not exist no locks stay; what a lock guards is guarded nevertheless.
func TestLocksGo(t *testing.T) {
	c := open(t, t.TempDir())
	if _, has := c.Has(t.Context(), "invented", nil); has {
		t.Error("it is there")
	}
	inside := 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				lock, err := c.lock(t.Context(), "one", unix.LOCK_EX)
				if err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Error("two have it")
				}
				inside--
				unlock(lock)
			}
		})
	}
	all.Wait()
	if left := children(filepath.Join(c.dir, "locks")); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// A layer that cannot be begun fails; it has its image's room on the disk.
func TestALayerThatCannotBeBegunFails(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	image, err := c.Source.Find(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.building = 1 << 62
	b, err := c.bringLayers(ctx, image, needed, &pulling{})
	if b.free(); err != nil {
		t.Errorf("beside others that take the disk: %v", err)
	}
	c.evict(0)
	if err := errors.Join(os.RemoveAll(filepath.Join(c.dir, "tmp")),
		os.WriteFile(filepath.Join(c.dir, "tmp"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	b, err = c.bringLayers(ctx, image, needed, &pulling{})
	if b.free(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want what is wrong with the folder", err)
	}
}

// While nobody can tell what a root needs, no layer goes.
func TestLayersOfARootThatNobodyCanReadStay(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	r, release, err := c.Pull(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	release()
	names := filepath.Join(filepath.Dir(r.Root), layersName)
	keys, err := layersOf(filepath.Dir(r.Root))
	if err := errors.Join(err, os.Remove(names), os.Mkdir(names, 0o755)); err != nil {
		t.Fatal(err)
	}
	c.drop(keys)
	c.evict(0)
	for _, key := range keys {
		if _, err := os.Stat(c.entry(key)); err != nil {
			t.Error(err)
		}
	}
}
