package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// newRegistry serves a registry on the loopback and returns its host.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// openFor opens a cache that may pull from the registry at host, without TLS.
func openFor(t testing.TB, dir, ref string) *Cache {
	t.Helper()
	host, _, _ := strings.Cut(ref, "/")
	registries, err := oci.ParseRegistries([]string{"http://" + host})
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, dir)
	c.Source.Allow(registries, nil)
	return c
}

// keep pulls an image in nobody's name, and does not release it.
func keep(t *testing.T, c *Cache, ref string) (Runtime, error) {
	t.Helper()
	r, _, err := c.Pull(t.Context(), ref, "")
	return r, err
}

func layer(t *testing.T, headers ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.PAXRecords["test.content"]
		h.PAXRecords = nil
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func file(name, content string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755,
		PAXRecords: map[string]string{"test.content": content}}
}

// push puts an image of two layers, made by change, into the registry.
func push(t *testing.T, host string, change func(*v1.ConfigFile)) string {
	t.Helper()
	return pushAs(t, host+"/team/action:1", change)
}

func pushAs(t *testing.T, as string, change func(*v1.ConfigFile)) string {
	t.Helper()
	return pushLayers(t, as, change,
		layer(t, file("app/run", "#!/bin/sh\n"), file("app/secret", "lower"),
			tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock},
			tar.Header{Name: "etc/up", Typeflag: tar.TypeSymlink, Linkname: "../../../.."}),
		layer(t, file("app/.wh.secret", ""), file("etc/up/landed", "inside"),
			file("../../escaped", "inside too")))
}

func pushLayers(t *testing.T, as string, change func(*v1.ConfigFile), layers ...v1.Layer) string {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{Entrypoint: []string{"/app/run"}, Cmd: []string{"-v"},
		Env: []string{"A=1", "B=x=y"}, WorkingDir: "/app"}
	change(config)
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(as)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

func TestPullFlattensLayers(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	r, err := keep(t, openFor(t, t.TempDir(), ref), ref)
	if err != nil {
		t.Fatal(err)
	}
	want := Runtime{Root: r.Root, Layers: r.Layers, Program: wire.Program{
		Command: []string{"/app/run", "-v"}, Args: 1, Dir: "/app",
		Env: map[string]string{"A": "1", "B": "x=y"}}}
	r.Pull = nil
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	dir := mounted(t, r)
	for file, there := range map[string]bool{"app/run": true, "app/secret": false, "landed": false,
		"etc/up/landed": true, "escaped": true, "dev/sda": false, "proc": true, "tmp": true} {
		if _, err := os.Lstat(filepath.Join(dir, file)); (err == nil) != there {
			t.Errorf("%s: %v, want there %v", file, err, there)
		}
	}
}

// mounted mounts a root image.
func mounted(t *testing.T, r Runtime) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir = t.TempDir()
	if err := rootfs.Mount(dir, r.Root, r.Layers...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	return dir
}

func TestPulledImageIsKept(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	ref := push(t, strings.TrimPrefix(server.URL, "http://"), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	first, err := keep(t, c, ref)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if again, err := keep(t, c, ref); err != nil || again.Root != first.Root {
		t.Errorf("with the registry gone: %+v, %v", again, err)
	}
}

func TestPullRefusals(t *testing.T) {
	host := newRegistry(t)
	for want, ref := range map[string]string{
		"an OCI reference": "not a reference!",
		"UNKNOWN":          host + "/team/absent:1",
		"linux/arm64": push(t, newRegistry(t),
			func(c *v1.ConfigFile) { c.Architecture = "arm64" }),
		"no command": push(t, newRegistry(t), func(c *v1.ConfigFile) {
			c.Config.Entrypoint, c.Config.Cmd = nil, nil
		}),
	} {
		dir := t.TempDir()
		_, err := keep(t, openFor(t, dir, strings.ReplaceAll(ref, " ", "")), ref)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", ref, err, want)
		}
		if left := size(filepath.Join(dir, "tmp")); left != 0 {
			t.Errorf("%s: %d bytes left", ref, left)
		}
	}
}

// TestWhatAnImageMayUnpackTo: of the disk no more is reserved than the image can ever have.
func TestWhatAnImageMayUnpackTo(t *testing.T) {
	for sent, want := range map[int64]int64{
		0: 512 << 20, 200 << 20: 1200 << 20, 1200 << 20: 4 << 30, 4 << 30: 4 << 30,
	} {
		if got := contentOf(sent); got != want {
			t.Errorf("of %d MB: %d MB, want %d", sent>>20, got>>20, want>>20)
		}
	}
}

// TestAnImageUnpacksToWhatIsReserved: a file that its archive announces is more than the disk was
// looked at for.
func TestAnImageUnpacksToWhatIsReserved(t *testing.T) {
	var b bytes.Buffer
	announced := tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: needed/2 + 1}
	if err := tar.NewWriter(&b).WriteHeader(&announced); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ref := pushLayers(t, newRegistry(t)+"/team/bomb:1", func(*v1.ConfigFile) {}, l)
	_, _, err = openFor(t, t.TempDir(), ref).Pull(t.Context(), ref, "")
	var refused *oci.Refusal
	if !errors.As(err, &refused) || refused.Reason != oci.TooLarge {
		t.Errorf("got %v, want that it is too large", err)
	}
}
