package image

import (
	"archive/tar"
	"bufio"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const asForger = "FASTIOV_TEST_AS_FORGER"

// startForger starts the registry of forgeries and returns its host.
func startForger(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), asForger+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	host, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(host)
}

func TestNoForgeryIsAccepted(t *testing.T) {
	host := startForger(t)
	dir := t.TempDir()
	c := openFor(t, dir, host)
	for n, kind := range slices.Sorted(maps.Keys(forgeries)) {
		ref := fmt.Sprintf("%s/%d-%d:1", host, n, n)
		if _, err := keep(t, c, ref); err == nil {
			t.Errorf("%s was accepted", kind)
		}
	}
	nothingKept(t, dir)
	for seed := range 3 {
		if _, err := keep(t, c, fmt.Sprintf("%s/sound-%d:1", host, seed)); err != nil {
			t.Errorf("a sound image: %v", err)
		}
	}
}

// TestASwappedLayerIsRefused: the registry answers for one layer's digest with another layer, which
// ends before the right one would.
func TestASwappedLayerIsRefused(t *testing.T) {
	for _, size := range []int{0, 100, 100 << 10, 4 << 20} {
		upright := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		var swapped string // the path that is answered wrongly
		var evil []byte
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if swapped != "" && strings.HasSuffix(r.URL.Path, swapped) &&
				r.Method == http.MethodGet {
				w.(http.Flusher).Flush() // and so tells no length
				_, _ = w.Write(evil)
				return
			}
			upright.ServeHTTP(w, r)
		}))
		random := make([]byte, 4<<10+size)
		for i := range random {
			random[i] = byte(rand.Uint32())
		}
		tag := strings.TrimPrefix(server.URL, "http://") + "/team/action:1"
		ref := pushLayers(t, tag, func(*v1.ConfigFile) {},
			layer(t, file("app/run", string(random))))
		swapped = lastLayer(t, ref)
		evil = append(one(tar.Header{Name: "EVIL", Typeflag: tar.TypeReg}, nil),
			make([]byte, size)...)
		dir := t.TempDir()
		_, err := keep(t, openFor(t, dir, ref), ref)
		if err == nil {
			t.Errorf("a layer swapped for one with %d bytes behind it was accepted", size)
		}
		nothingKept(t, dir)
		server.Close()
	}
}

func lastLayer(t *testing.T, ref string) string {
	t.Helper()
	reference, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(reference)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[len(m.Layers)-1].Digest.String()
}
