package command

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fastiov/fastiov/command/settings"
)

// TestImagesByCommand goes through the life of images by the commands that users have.
func TestImagesByCommand(t *testing.T) {
	t.Setenv("FASTIOV_CACHE", t.TempDir())
	t.Setenv(settings.FileVariable, settings.NoFile)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	one, two := pushImage(t, server.URL, 1), pushImage(t, server.URL, 2)
	do := func(args ...string) (string, error) {
		root := rootCmd()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"image"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := do(args...)
		if err != nil {
			t.Fatalf("%v: %v, %s", args, err, out)
		}
		return out
	}
	list := func() (images []imageHere) {
		t.Helper()
		out := must("ls", "--json", "--run-dir", t.TempDir())
		if err := json.Unmarshal([]byte(out), &images); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return images
	}
	must("pull", one, two, "--image-registries", server.URL)
	images := list()
	if len(images) != 2 || images[0].Image != one || images[0].Unique >= images[0].Bytes ||
		images[0].Pinned || images[0].Namespace != "" {
		t.Fatalf("%+v", images)
	}
	if out := must("ls", "--run-dir", t.TempDir()); !strings.Contains(out, one) ||
		!strings.Contains(out, "MiB") {
		t.Error(out)
	}
	must("pin", one)
	if out := must("prune"); !strings.HasPrefix(out, "1 images removed") {
		t.Error(out)
	}
	if images = list(); len(images) != 1 || !images[0].Pinned {
		t.Fatalf("%+v", images)
	}
	must("pin", one, "--undo")
	must("rm", one)
	if images = list(); len(images) != 0 {
		t.Errorf("%+v", images)
	}
	saved := filepath.Join(t.TempDir(), "saved.tar")
	tag, err := name.NewTag(one)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(tag)
	if err == nil {
		err = tarball.WriteToFile(saved, tag, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := must("load", saved); !strings.Contains(out, one+"\n") {
		t.Error(out)
	}
	if images = list(); len(images) != 1 || !images[0].Loaded {
		t.Errorf("%+v", images)
	}
	for _, bad := range [][]string{{"rm", two}, {"pin", two}, {"load", "/absent"},
		{"rm", one, "--namespace", "nobody"}, {"pull", two}} {
		if out, err := do(bad...); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, %s", bad, err, out)
		}
	}
}

// pushImage puts the n-th image into the registry: one layer that all have, and one of its own.
func pushImage(t *testing.T, url string, n int) (ref string) {
	t.Helper()
	ref = fmt.Sprintf("%s/team/image%d:1", strings.TrimPrefix(url, "http://"), n)
	img, err := mutate.AppendLayers(empty.Image, layerOf(t, "shared"),
		layerOf(t, fmt.Sprint("own", n)))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{Entrypoint: []string{"/run"}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func layerOf(t *testing.T, name string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := strings.Repeat(name, 50_000)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644,
		Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
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
