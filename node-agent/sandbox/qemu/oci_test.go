package qemu

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
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

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const (
	asRuntime = "FASTIOV_TEST_AS_RUNTIME" // in the image's environment: this binary is the runtime
	imageRef  = "FASTIOV_TEST_IMAGE"      // the image's reference, with the registry's port
)

// whoAmI is a runtime that answers every request with its own user, directory and the like.
func whoAmI() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		dir, _ := os.Getwd()
		fmt.Fprintf(w, "uid %d gid %d dir %s args %v", os.Getuid(), os.Getgid(), dir, os.Args[1:])
	})
	_ = http.ListenAndServe(fmt.Sprintf(":%d", wire.RuntimePort), nil)
}

// TestAnImageFromARegistryBoots: an image is pulled, flattened, exported to the node and booted;
// its entrypoint runs as its user in its directory.
func TestAnImageFromARegistryBoots(t *testing.T) {
	ref := os.Getenv(imageRef)
	if ref == "" && os.Getenv("FASTIOV_TEST_TESTBED") != "" {
		ref = pushSelf(t)
		t.Setenv(imageRef, ref)
	}
	testbed.Inside(t, testbed.Needs{NICs: 1, Images: []string{ref}, Env: []string{imageRef}},
		func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			images, err := image.OpenSet(testbed.ImagesDir)
			if err != nil {
				t.Fatal(err)
			}
			runtime, _, err := images.Use(ctx, ref, "")
			if err != nil {
				t.Fatal(err)
			}
			vmm, err := hypervisor.Find(ctx, images.QEMU)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Open(Config{
				QEMU: vmm, Kernel: images.Guest.Kernel, Initrd: images.Guest.Initrd,
				Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			spec := sandbox.Spec{
				ID: "from-a-registry", Dir: t.TempDir(), Root: runtime.Root, Layers: runtime.Layers,
				Program:   runtime.Program,
				MemoryMiB: 192, NIC: &sandboxtest.VFs(t)[0],
			}
			s, err := d.Start(ctx, spec, &timeline.Timeline{}, func(sandbox.Record) error {
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, answer, err := openwhisk.New(s, wire.RuntimePort, nil).Run(ctx, nil, time.Time{})
			if want := "uid 1000 gid 50 dir /data args [serve]"; err != nil ||
				string(answer) != want {
				t.Errorf("%q, %v; want %q", answer, err, want)
			}
		})
}

// pushSelf pushes an image with this binary as its entrypoint to a registry of the test's own.
func pushSelf(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	files := archive(t, map[string][]byte{
		"usr/bin/runtime": self, "etc/passwd": []byte("node:x:1000:1000::/:\n"),
		"etc/group": []byte("staff:x:50:\n"), "data/.keep": nil,
	})
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, config(t, img))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref := net.JoinHostPort("127.0.0.1", server.URL[strings.LastIndex(server.URL, ":")+1:]) +
		"/team/runtime:1"
	tag, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	return ref
}

func config(t *testing.T, img v1.Image) *v1.ConfigFile {
	t.Helper()
	old, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := old.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config = v1.Config{Entrypoint: []string{"runtime"}, Cmd: []string{"serve"},
		Env: []string{asRuntime + "=1", "PATH=/usr/bin"}, WorkingDir: "/data", User: "node:staff"}
	return c
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for file, content := range files {
		mode := int64(0o644)
		if filepath.Dir(file) == "usr/bin" {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Name: file, Typeflag: tar.TypeReg, Mode: mode,
			Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
