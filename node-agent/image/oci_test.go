package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
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

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// newRegistry serves a registry on the loopback and returns its host.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
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
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func file(name, content string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, PAXRecords: map[string]string{"test.content": content}}
}

// push puts an image of two layers, made by change, into the registry.
func push(t *testing.T, host string, change func(*v1.ConfigFile)) string {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image,
		layer(t, file("app/run", "#!/bin/sh\n"), file("app/secret", "lower"), tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock},
			tar.Header{Name: "etc/up", Typeflag: tar.TypeSymlink, Linkname: "../../../.."}),
		layer(t, file("app/.wh.secret", ""), file("etc/up/landed", "inside"), file("../../escaped", "inside too")))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{Entrypoint: []string{"/app/run"}, Cmd: []string{"-v"}, Env: []string{"A=1", "B=x=y"}, WorkingDir: "/app"}
	change(config)
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/team/action:1")
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
	r, err := open(t, t.TempDir()).Runtime(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	want := Runtime{Root: r.Root, Program: wire.Program{Command: []string{"/app/run", "-v"}, Env: map[string]string{"A": "1", "B": "x=y"}, Dir: "/app"}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("the rest needs fsck.erofs (package erofs-utils)")
	}
	dir := filepath.Join(t.TempDir(), "out")
	if out, err := exec.Command(fsck, "--extract="+dir, r.Root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for file, there := range map[string]bool{"app/run": true, "app/secret": false, "landed": true, "escaped": true, "dev/sda": false, "proc": true, "tmp": true} {
		if _, err := os.Lstat(filepath.Join(dir, file)); (err == nil) != there {
			t.Errorf("%s: %v, want there %v", file, err, there)
		}
	}
}

func TestAnImagesUser(t *testing.T) {
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	accounts := map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nnode:x:1000:1001::/:\n", "etc/group": "staff:x:50:\n"}
	for name, content := range accounts {
		if err := tree.Write(name, 0o644, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	for user, want := range map[string]string{
		"": "0 0", "node": "1000 1001", "1000": "1000 1001", "node:staff": "1000 50", "7": "7 0", "7:8": "7 8",
		"nobody": "not in its /etc/passwd", "node:nobody": "not in its /etc/group", "-1": "not in its /etc/passwd", "4294967296": "not in its",
	} {
		uid, gid, err := lookUp(tree, user)
		got := fmt.Sprint(uid, gid)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", user, got, want)
		}
	}
}

func TestPulledImageIsKept(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	ref := push(t, strings.TrimPrefix(server.URL, "http://"), func(*v1.ConfigFile) {})
	c := open(t, t.TempDir())
	first, err := c.Runtime(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if again, err := c.Runtime(t.Context(), ref); err != nil || again.Root != first.Root {
		t.Errorf("with the registry gone: %+v, %v", again, err)
	}
}

func TestPullRefusals(t *testing.T) {
	host := newRegistry(t)
	for want, ref := range map[string]string{
		"an OCI reference": "not a reference!",
		"UNKNOWN":          host + "/team/absent:1",
		"linux/arm64":      push(t, newRegistry(t), func(c *v1.ConfigFile) { c.Architecture = "arm64" }),
		"no command":       push(t, newRegistry(t), func(c *v1.ConfigFile) { c.Config.Entrypoint, c.Config.Cmd = nil, nil }),
	} {
		dir := t.TempDir()
		if _, err := open(t, dir).Runtime(t.Context(), ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", ref, err, want)
		}
		if left := size(filepath.Join(dir, "tmp")); left != 0 {
			t.Errorf("%s: %d bytes left", ref, left)
		}
	}
}
