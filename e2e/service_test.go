//go:build containers

package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// A Knative service runs in a container of an image of its own, goes to zero and comes back, and
// says why where its program ends.
func TestAServiceInAContainer(t *testing.T) {
	inNetwork(t, func() {
		image, hub := pushService(t)
		dir := shortDir(t)
		run, address := filepath.Join(dir, "run"), "127.0.0.1:3233"
		downAfter(t, run)
		must(t, "up", "--sandbox", "containerd", "--metrics", "", "--run-dir", run, "--state-dir",
			filepath.Join(dir, "state"), "--listen", address, "--keep-alive", "2s",
			"--image-registries", hub)
		key, err := openwhisk.LoadKey(address, "")
		if err != nil {
			t.Fatal(err)
		}
		k := kubernetes{t, "http://" + address, key.String()}
		k.create("good", image, "")
		k.await("good", `"type":"Ready","status":"True"`)
		said := k.curl("good")
		for _, want := range []string{"good.guest.localhost:3233 /x good good-00001 you"} {
			if !strings.HasPrefix(said, want) {
				t.Errorf("it answers %q, want %q", said, want)
			}
		}
		eventually(t, func() bool {
			return !strings.Contains(must(t, "status", "--json", "--run-dir", run),
				`"state":"ready"`)
		})
		begun := time.Now()
		again := k.curl("good")
		t.Logf("from zero: %v", time.Since(begun).Round(time.Millisecond))
		if fields(again, 5) != fields(said, 5) {
			t.Errorf("after it was at zero it answers %q", again)
		}
		k.create("bad", image, `,"args":["flag"]`)
		k.await("bad", `"type":"Ready","status":"False"`)
		k.create("none", strings.TrimSuffix(image, ":1")+":2", "")
		k.await("none", `"type":"Ready","status":"False"`)
		must(t, "down", "--run-dir", run)
		nothingOf(t, run)
	})
}

// fields returns the first words of a text.
func fields(text string, n int) string {
	all := strings.Fields(text)
	return strings.Join(all[:min(n, len(all))], " ")
}

// pushService pushes an image with this binary as its program to a registry of the test's own.
func pushService(t *testing.T) (image, hub string) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: "usr/bin/runtime", Typeflag: tar.TypeReg,
		Mode: 0o755, Size: int64(len(self))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(self); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, func() *v1.ConfigFile {
		old, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c := old.DeepCopy()
		c.OS, c.Architecture = "linux", "amd64"
		c.Config = v1.Config{Entrypoint: []string{"/usr/bin/runtime"},
			Env: []string{asService + "=1"}, User: "1000"}
		return c
	}())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	image = net.JoinHostPort("127.0.0.1", port) + "/team/program:1"
	tag, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	return image, "http://127.0.0.1:" + port
}
