package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// pulls pulls an image for a namespace, and releases it.
func pullFor(t *testing.T, c *Cache, ref, namespace string) (Runtime, error) {
	t.Helper()
	r, release, err := c.Pull(t.Context(), ref, namespace)
	if err == nil {
		release()
	}
	return r, err
}

// TestAnImageThatIsHereNeedsNoRegistry: a later process starts it while its registry is away.
func TestAnImageThatIsHereNeedsNoRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	host := strings.TrimPrefix(server.URL, "http://")
	ref := push(t, host, func(*v1.ConfigFile) {})
	dir := t.TempDir()
	former := openFor(t, dir, ref)
	first, err := pullFor(t, former, ref, "a")
	if err != nil {
		t.Fatal(err)
	}
	former.Close()
	server.Close()
	for _, later := range []time.Duration{0, time.Hour} { // known, or looked up in vain
		c := openFor(t, dir, ref)
		c.pulls.now = func() time.Time { return time.Now().Add(later) }
		if got := c.here(); len(got) != 1 || got[0] != ref {
			t.Errorf("here are %v, want %s", got, ref)
		}
		if again, err := pullFor(t, c, ref, "a"); err != nil || again.Root != first.Root {
			t.Errorf("after %s: %+v, %v", later, again, err)
		}
		if _, err := pullFor(t, c, ref, "b"); err == nil {
			t.Error("another namespace got what only the registry may give it")
		}
	}
}

func TestPullPolicies(t *testing.T) {
	moved := func(f *v1.ConfigFile) { f.Config.Cmd = []string{"moved"} }
	// how often a manifest was asked for: then, after 6 min, and in a later process
	for text, want := range map[string][3]int{
		"Always": {2, 3, 4}, "IfNotPresent": {1, 1, 1}, "5m": {1, 2, 2}, "10m": {1, 1, 1},
	} {
		r, host := newCountingRegistry(t)
		close(r.gate)
		ref := push(t, host, func(*v1.ConfigFile) {})
		clear(r.asked)
		dir := t.TempDir()
		now := time.Now()
		opened := func() *Cache {
			c := openFor(t, dir, ref)
			c.pulls.now = func() time.Time { return now }
			if err := c.Policy.Set(text); err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := opened()
		var got [3]int
		for n, step := range []func(){func() {}, func() { now = now.Add(6 * time.Minute) },
			func() { c.Close(); c = opened() }} {
			if n == 0 {
				if _, err := pullFor(t, c, ref, "a"); err != nil {
					t.Fatal(err)
				}
				push(t, host, moved)
				r.mu.Lock()
				r.asked["manifests"] = 1
				r.mu.Unlock()
			}
			step()
			if _, err := pullFor(t, c, ref, "a"); err != nil {
				t.Fatal(err)
			}
			got[n] = r.count("manifests")
		}
		if got != want {
			t.Errorf("%s: asked %v times, want %v", text, got, want)
		}
	}
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	if err := c.Policy.Set("Never"); err != nil {
		t.Fatal(err)
	}
	var refused *oci.Refusal
	if _, err := pullFor(t, c, ref, "a"); !errors.As(err, &refused) ||
		refused.Reason != oci.NotFound || !strings.Contains(err.Error(), "image load") {
		t.Errorf("Never: %v", err)
	}
	for _, bad := range []string{"", "always", "0s", "-1m", "5"} {
		if new(Policy).Set(bad) == nil {
			t.Errorf("%q is a policy", bad)
		}
	}
}

// TestImagesShareLayers: what is listed, pinned, removed and pruned.
func TestImagesShareLayers(t *testing.T) {
	host := newRegistry(t)
	shared := layer(t, file("shared", strings.Repeat("s", 300<<10)))
	refs := make([]string, 3)
	for n := range refs {
		refs[n] = pushLayers(t, fmt.Sprintf("%s/team/n%d:1", host, n), func(*v1.ConfigFile) {},
			shared, layer(t, file(fmt.Sprint("own", n), strings.Repeat("o", 100<<10))), shared)
	}
	c := openFor(t, t.TempDir(), host)
	for _, ref := range refs {
		if _, err := pullFor(t, c, ref, "a"); err != nil {
			t.Fatal(err)
		}
	}
	r, release, err := c.Pull(t.Context(), refs[0], "a")
	if err != nil {
		t.Fatal(err)
	}
	list := c.Images()
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	for n, l := range list {
		if l.Ref != refs[n] || l.Bytes < 400<<10 || l.Unique < 100<<10 || l.Unique > 200<<10 ||
			time.Since(l.Used) > time.Minute || l.Namespace != "a" {
			t.Errorf("%+v", l)
		}
		if users := []int{os.Getpid()}; (n == 0) != (fmt.Sprint(l.Users) == fmt.Sprint(users)) {
			t.Errorf("%s is used by %v", l.Ref, l.Users)
		}
	}
	if err := c.Remove(refs[0], nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("removing what is used: %v", err)
	}
	if err := c.Pin(t.Context(), refs[1], nil, true); err != nil {
		t.Fatal(err)
	}
	c.evict(0)
	if n, _ := c.Prune(); n != 0 {
		t.Errorf("%d images pruned; one is used, one pinned, one evicted already", n)
	}
	if _, err := os.Stat(r.Root); err != nil || len(c.Images()) != 2 {
		t.Errorf("%v, %+v", err, c.Images())
	}
	release()
	if n, bytes := c.Prune(); n != 1 || bytes < 100<<10 || bytes > 200<<10 {
		t.Errorf("%d images, %d bytes pruned", n, bytes)
	}
	if _, err := pullFor(t, c, refs[1], "b"); err != nil { // a second name of the pinned one
		t.Fatal(err)
	}
	of := "a"
	if err := c.Remove(refs[1], &of); err != nil || len(c.Images()) != 1 {
		t.Errorf("%v, %+v", err, c.Images())
	}
	if err := errors.Join(c.Remove(refs[1], nil)); err != nil || len(c.Images()) != 0 {
		t.Errorf("%v, %+v", err, c.Images())
	}
	if left := children(filepath.Join(c.dir, "entries")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := c.Remove(refs[1], nil); !errors.Is(err, ErrNotHere) {
		t.Errorf("removing nothing: %v", err)
	}
}

// TestSavedImagesAreLoaded: an OCI layout, as a directory and as an archive, and `docker save`.
func TestSavedImagesAreLoaded(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	parsed, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(parsed)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	asLayout := filepath.Join(dir, "layout")
	to, err := layout.Write(asLayout, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	called := map[string]string{"io.containerd.image.name": "example.org/a/nested:1"}
	if err := errors.Join(
		to.AppendImage(img, layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": "example.org/a/plain:1"})),
		to.AppendIndex(index, layout.WithAnnotations(called)),
	); err != nil {
		t.Fatal(err)
	}
	asArchive, saved := filepath.Join(dir, "layout.tar"), filepath.Join(dir, "saved.tar")
	f, err := os.Create(asArchive)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(asLayout)), w.Close(), f.Close(),
		tarball.WriteToFile(saved, parsed, img)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		asLayout:  {"example.org/a/plain:1", "example.org/a/nested:1"},
		asArchive: {"example.org/a/plain:1", "example.org/a/nested:1"},
		saved:     {ref},
	} {
		c := open(t, t.TempDir())
		if err := c.Policy.Set("Always"); err != nil {
			t.Fatal(err)
		}
		got, err := c.Load(t.Context(), path, "")
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, %v; want %v", path, got, err, want)
			continue
		}
		r, err := pullFor(t, c, want[0], "somebody") // by no registry: none is allowed
		if err != nil || strings.Join(r.Command, " ") != "/app/run -v" {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
		if list := c.Images(); len(list) != len(want) || !list[0].Loaded {
			t.Errorf("%s: %+v", path, list)
		}
	}
	c := open(t, t.TempDir())
	if _, err := c.Load(t.Context(), asLayout, "one:1"); err == nil ||
		!strings.Contains(err.Error(), "2 images") {
		t.Errorf("one name for two: %v", err)
	}
	if got, err := c.Load(t.Context(), saved, "one:1"); err != nil ||
		fmt.Sprint(got) != "[index.docker.io/library/one:1]" {
		t.Errorf("by another name: %v, %v", got, err)
	}
	in, err := os.Open(saved)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	once := struct{ io.Reader }{in} // as a pipe
	got, err := c.LoadFrom(t.Context(), once, "two:1")
	if err != nil || fmt.Sprint(got) != "[index.docker.io/library/two:1]" {
		t.Errorf("from a pipe: %v, %v", got, err)
	}
	_, err = c.LoadFrom(t.Context(), strings.NewReader("no archive"), "three:1")
	if err == nil || !strings.HasPrefix(err.Error(), "standard input: it is neither") {
		t.Errorf("no archive from a pipe: %v", err)
	}
	if left := children(filepath.Join(c.dir, "tmp")); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// TestANewerPullIsSeen: an agent remembers what a tag stood for, until another process knows
// better.
func TestANewerPullIsSeen(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	dir := t.TempDir()
	agent, other := openFor(t, dir, ref), openFor(t, dir, ref)
	if err := other.Policy.Set("Always"); err != nil {
		t.Fatal(err)
	}
	first, err := pullFor(t, agent, ref, "a")
	if err != nil {
		t.Fatal(err)
	}
	pushAs(t, ref, func(f *v1.ConfigFile) { f.Config.Cmd = []string{"newer"} })
	if again, err := pullFor(t, agent, ref, "a"); err != nil || again.Root != first.Root {
		t.Errorf("it was looked up again: %v", err)
	}
	if _, err := pullFor(t, other, ref, ""); err != nil {
		t.Fatal(err)
	}
	newer, err := pullFor(t, agent, ref, "a")
	if err != nil || newer.Root == first.Root || !slices.Contains(newer.Command, "newer") {
		t.Errorf("what another process pulled is not seen: %v, %v", newer.Command, err)
	}
}

// TestDamagedSavedImages: each is refused in a line, and nothing is left.
func TestDamagedSavedImages(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	parsed, _ := name.NewTag(ref)
	img, err := remote.Image(parsed)
	if err != nil {
		t.Fatal(err)
	}
	for what, damage := range map[string]struct {
		do   func(dir string, blobs []string) error
		want string
	}{
		"a flipped bit": {func(_ string, blobs []string) error {
			for _, blob := range blobs {
				b, err := os.ReadFile(blob)
				if err != nil {
					return err
				}
				b[len(b)/2] ^= 1
				if err := os.WriteFile(blob, b, 0o644); err != nil {
					return err
				}
			}
			return nil
		}, "digest"},
		"no blobs": {func(dir string, _ []string) error {
			return os.RemoveAll(filepath.Join(dir, "blobs"))
		}, "no such file"},
		"no index": {func(dir string, _ []string) error {
			return os.Remove(filepath.Join(dir, "index.json"))
		}, "neither index.json"},
		"no name": {func(string, []string) error { return nil }, "what its image is called"},
	} {
		dir := t.TempDir()
		to, err := layout.Write(dir, empty.Index)
		if err == nil {
			err = to.AppendImage(img)
		}
		if err != nil {
			t.Fatal(err)
		}
		blobs, _ := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
		if err := damage.do(dir, blobs); err != nil {
			t.Fatal(err)
		}
		called := "a:1"
		if what == "no name" {
			called = ""
		}
		c := open(t, t.TempDir())
		if _, err := c.Load(t.Context(), dir, called); err == nil ||
			!strings.Contains(err.Error(), damage.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", what, err, damage.want)
		}
		if left := append(children(filepath.Join(c.dir, "entries")), c.here()...); len(left) != 0 {
			t.Errorf("%s: left %v", what, left)
		}
	}
	compressed := filepath.Join(t.TempDir(), "a.tar.gz")
	if err := os.WriteFile(compressed, gzipped([]byte("archive")), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, t.TempDir()).Load(t.Context(), compressed, ""); err == nil ||
		!strings.Contains(err.Error(), "decompress") {
		t.Errorf("a compressed archive: %v", err)
	}
}
