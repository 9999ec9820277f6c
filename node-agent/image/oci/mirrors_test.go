package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

// TestAMirrorThatLiesIsPassedOver: what comes of it is not the image, and the registry is asked.
func TestAMirrorThatLiesIsPassedOver(t *testing.T) {
	stock, _ := stocked(t)
	for name, lie := range map[string]func([]byte) []byte{
		"a flipped bit":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"another content": func(b []byte) []byte { return bytes.Repeat([]byte("<"), len(b)) },
		"a shorter one":   func(b []byte) []byte { return b[:len(b)-1] },
		"a bomb":          bomb,
	} {
		var lies atomic.Int64
		mirrorURL, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			stock.ServeHTTP(answer, r)
			b := answer.Body.Bytes()
			if strings.Contains(r.URL.Path, "/blobs/") && len(b) > 0 {
				told := lie(bytes.Clone(b))
				if !bytes.Equal(told, b) {
					lies.Add(1)
				}
				b = told
			}
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.WriteHeader(answer.Code)
			_, _ = w.Write(b)
		}))
		upstreamURL, _ := serve(t, stock)
		s := withHosts(t, hostsDir(t, "registry.example.org", fmt.Sprintf(
			"server = %q\n[host.%q]\n", upstreamURL, mirrorURL)), "registry.example.org")
		i, err := s.Find(t.Context(), "registry.example.org/a:1", "")
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		if _, err := i.Inspect(t.Context(), filepath.Join(t.TempDir(), "cell")); err != nil &&
			!strings.Contains(err.Error(), "no command") {
			t.Errorf("%s, configuration: %v", name, err)
		}
		rooms := NewRooms(i.Bytes * 5 / 4) // not for a layer twice
		defer rooms.Close()
		for n, d := range i.Layers() {
			l, err := i.Unpack(t.Context(), n, t.TempDir(), Inflating{}, rooms, atOnce{})
			if err != nil || l.Size == 0 {
				t.Errorf("%s, layer %d of %d bytes: %v", name, n, d.Size, err)
			}
		}
		if i.hosts[0].root.Host != strings.TrimPrefix(mirrorURL, "http://") {
			t.Errorf("%s: the mirror was not asked", name)
		}
		if n := lies.Load(); n != 1 {
			t.Errorf("%s: the mirror was asked for %d parts, want one: then it was known", name, n)
		}
	}
}

// bomb returns as many bytes as b has, which inflate to a thousand times as much.
func bomb(b []byte) []byte {
	const zeros = 64 << 20
	if len(b) < zeros>>9 {
		return b
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_ = tar.NewWriter(w).WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: zeros})
	_, _ = w.Write(make([]byte, zeros))
	_ = w.Close()
	return append(out.Bytes(), b[out.Len():]...)
}

// TestAMirrorAtAPathNeedsNoOther: where a mirror's path is told, nothing else of it is asked.
func TestAMirrorAtAPathNeedsNoOther(t *testing.T) {
	stock, _ := stocked(t)
	var served atomic.Int64
	mirrorURL, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, is := strings.CutPrefix(r.URL.Path, "/cache/hub/")
		if !is || path == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		served.Add(1)
		r.URL.Path = "/v2/" + path
		stock.ServeHTTP(w, r)
	}))
	s := withHosts(t, hostsDir(t, "registry.example.org", fmt.Sprintf(
		"server = \"http://127.0.0.1:1\"\n[host.%q]\noverride_path = true\n",
		mirrorURL+"/cache/hub")), "registry.example.org")
	if err := fetched(t, s, "registry.example.org/a:1"); err != nil || served.Load() < 4 {
		t.Errorf("%v, asked %d times", err, served.Load())
	}
}

// TestAnotherServerGetsNoPassword: what a namespace has for a registry is sent to that alone, also
// where a file puts another server in its place.
func TestAnotherServerGetsNoPassword(t *testing.T) {
	stock, _ := stocked(t)
	var sent atomic.Value
	url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, given := r.BasicAuth(); given {
			sent.Store(user)
			stock.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	host := strings.TrimPrefix(url, "http://")
	s := withHosts(t, hostsDir(t, "docker.io", fmt.Sprintf("server = %q\n", url)), "docker.io")
	auth := func(user string) authn.AuthConfig {
		return authn.AuthConfig{Username: user, Password: "secret"}
	}
	of := map[string]authn.AuthConfig{"index.docker.io": auth("hub")}
	s.Allow(s.allowed.Load().registries, Credentials{"tenant": keys{auths: of}})
	if err := fetched(t, s, "docker.io/a/a:1"); err == nil || sent.Load() != nil {
		t.Errorf("%v; the server got the password of %v", err, sent.Load())
	}
	of[host] = auth("server")
	if _, err := s.Find(t.Context(), "docker.io/library/a:1", "tenant"); sent.Load() != "server" {
		t.Errorf("%v; the server got the password of %v", err, sent.Load())
	}
}

// TestALayerIsAskedForWhereverItIs: of a layer that is here, one host's no is not the last word.
func TestALayerIsAskedForWhereverItIs(t *testing.T) {
	stock, _ := stocked(t)
	mirror := &place{Handler: stock}
	mirrorURL, _ := serve(t, mirror)
	upstream := &place{Handler: stock}
	upstreamURL, _ := serve(t, upstream)
	s := withHosts(t, hostsDir(t, "registry.example.org", fmt.Sprintf(
		"server = %q\n[host.%q]\n", upstreamURL, mirrorURL)), "registry.example.org")
	i, err := s.Find(t.Context(), "registry.example.org/a:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	absent := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }
	mirror.bad = absent
	if err := i.MayHave(t.Context(), 0); err != nil {
		t.Errorf("a mirror without the layer: %v", err)
	}
	upstream.bad = absent
	if err := i.MayHave(t.Context(), 0); err == nil {
		t.Error("nobody has it, and we may")
	}
}
