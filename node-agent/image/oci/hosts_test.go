package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A place is a registry that notes what it is asked, and refuses what bad names.
type place struct {
	http.Handler
	asked atomic.Int64
	query atomic.Value
	bad   func(*http.Request) bool
}

func (p *place) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	if strings.Contains(r.URL.Path, "/manifests/") {
		p.query.Store(r.URL.RawQuery + " " + r.Header.Get("X-Told"))
	}
	if p.bad != nil && p.bad(r) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	p.Handler.ServeHTTP(w, r)
}

// stocked returns a registry's handler with one image of two layers, a:1.
func stocked(t *testing.T) (http.Handler, v1.Image) {
	t.Helper()
	r := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(r)
	defer server.Close()
	img, err := random.Image(3<<20, 2) // more than a pipe holds
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/a:1")
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, img
}

// hostsDir writes one hosts.toml.
func hostsDir(t *testing.T, host, content string) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, strings.Replace(host, ":", "_", 1))
	if strings.Contains(host, ":") {
		at += "_"
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, hostsFile), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fetched pulls all parts of an image by the source.
func fetched(t *testing.T, s *Source, ref string) error {
	t.Helper()
	i, err := s.Find(t.Context(), ref, "tenant")
	if err != nil {
		return err
	}
	defer i.Close()
	for _, d := range append([]v1.Descriptor{i.manifest.Config}, i.manifest.Layers...) {
		var b bytes.Buffer
		if err := i.blob(t.Context(), d, &b, i.hosts[0], atOnce{}); err != nil {
			return err
		}
		if sum := sha256.Sum256(b.Bytes()); hex.EncodeToString(sum[:]) != d.Digest.Hex {
			t.Errorf("%s is not itself", d.Digest)
		}
	}
	return nil
}

func withHosts(t *testing.T, dir string, entries ...string) *Source {
	t.Helper()
	s := source(t, entries...)
	registries := *s.allowed.Load().registries
	registries.HostsDir = dir
	s.Allow(&registries, nil)
	return s
}

func serve(t *testing.T, h http.Handler) (url string, end func()) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL, server.Close
}

// TestMirrors: they are asked before their registry, and it is asked for what they do not have.
func TestMirrors(t *testing.T) {
	stock, img := stocked(t)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	mirror, other := &place{Handler: stock}, &place{Handler: stock}
	upstream := &place{Handler: stock}
	mirrorURL, _ := serve(t, mirror)
	otherURL, closeOther := serve(t, other)
	upstreamURL, closeUpstream := serve(t, upstream)
	closeOther() // a mirror that is away
	dir := hostsDir(t, "registry.example.org", fmt.Sprintf(`
server = %q
[host.%q]
[host.%q]
  capabilities = ["pull", "resolve"]
  [host.%[3]q.header]
    X-Told = "yes"
[host."http://127.0.0.1:1"]
  capabilities = ["push"]
`, upstreamURL, otherURL, mirrorURL))
	s := withHosts(t, dir, "registry.example.org")
	const ref = "registry.example.org/a:1"
	if err := fetched(t, s, ref); err != nil {
		t.Fatal(err)
	}
	if upstream.asked.Load() != 0 || mirror.query.Load() != "ns=registry.example.org yes" {
		t.Errorf("upstream was asked %d times, the mirror %q", upstream.asked.Load(),
			mirror.query.Load())
	}
	mirror.bad = func(r *http.Request) bool { return strings.Contains(r.URL.Path, digest.Hex) }
	if err := fetched(t, s, ref); err != nil || upstream.asked.Load() == 0 {
		t.Errorf("a mirror without a layer: %v; upstream was asked %d times", err,
			upstream.asked.Load())
	}
	mirror.bad = func(*http.Request) bool { return true }
	if err := fetched(t, s, ref); err != nil || upstream.query.Load() != " " {
		t.Errorf("a mirror without anything: %v; upstream was asked %q", err, upstream.query.Load())
	}
	closeUpstream()
	err = fetched(t, s, ref)
	var why *Refusal
	if !errors.As(err, &why) || why.Reason != Unreachable ||
		!strings.Contains(err.Error(), strings.TrimPrefix(mirrorURL, "http://")) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("all away: %v", err)
	}
	mirror.bad = nil
	if err := fetched(t, s, ref); err != nil {
		t.Errorf("the registry away: %v", err)
	}
	// whom no file names is not reached by another's file
	direct := strings.TrimPrefix(mirrorURL, "http://") + "/a:1"
	if _, err := s.Find(t.Context(), direct, ""); err == nil {
		t.Error("a mirror is a registry that images may name")
	}
}

// TestAMirrorThatIsNotAskedForTags has blobs alone.
func TestAMirrorThatIsNotAskedForTags(t *testing.T) {
	stock, img := stocked(t)
	mirror, upstream := &place{Handler: stock}, &place{Handler: stock}
	mirrorURL, _ := serve(t, mirror)
	upstreamURL, _ := serve(t, upstream)
	dir := hostsDir(t, "registry.example.org", fmt.Sprintf("server = %q\n[host.%q]\n"+
		"capabilities = [\"pull\"]\n", upstreamURL, mirrorURL))
	s := withHosts(t, dir, "registry.example.org")
	if err := fetched(t, s, "registry.example.org/a:1"); err != nil || mirror.query.Load() != nil {
		t.Errorf("%v, the mirror was asked for the tag %q", err, mirror.query.Load())
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	upstream.bad = func(*http.Request) bool { return true }
	if err := fetched(t, s, "registry.example.org/a@"+digest.String()); err != nil {
		t.Errorf("by its digest: %v", err)
	}
}

func TestCertificatesOfARegistry(t *testing.T) {
	stock, _ := stocked(t)
	server := httptest.NewTLSServer(stock)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o644); err != nil {
		t.Fatal(err)
	}
	for content, good := range map[string]bool{
		fmt.Sprintf("server = %q\nca = %q\n", server.URL, ca):               true,
		fmt.Sprintf("server = %q\nskip_verify = true\n", server.URL):        true,
		fmt.Sprintf("server = %q\n", server.URL):                            false,
		fmt.Sprintf("ca = %q\n", ca):                                        false, // not told
		fmt.Sprintf("server = %q\nca = %q\n", "https://127.0.0.1:1/v2", ca): false,
	} {
		err := fetched(t, withHosts(t, hostsDir(t, host, content), host), host+"/a:1")
		if (err == nil) != good {
			t.Errorf("%s: %v", content, err)
		}
	}
	// certificates in the form of Docker, for a registry that was told
	docker := t.TempDir()
	at := filepath.Join(docker, host)
	if err := errors.Join(os.Mkdir(at, 0o755),
		os.WriteFile(filepath.Join(at, "ca.crt"), block, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := fetched(t, withHosts(t, docker, server.URL), host+"/a:1"); err != nil {
		t.Errorf("a folder of Docker's: %v", err)
	}
}

// TestCertificatesAreForTheirHostAlone: who is sent elsewhere shows none there, and trusts nobody
// more.
func TestCertificatesAreForTheirHostAlone(t *testing.T) {
	stock, _ := stocked(t)
	storage := httptest.NewTLSServer(stock)
	storage.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer storage.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, storage.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		stock.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	dir := hostsDir(t, host, fmt.Sprintf("server = %q\nskip_verify = true\n", server.URL))
	s := withHosts(t, dir, host, storage.URL)
	i, err := s.Find(t.Context(), host+"/a:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if _, err := i.get(t.Context(), i.hosts[0], "blobs", i.manifest.Config.Digest.String(),
		""); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

func TestBadHostsFiles(t *testing.T) {
	for content, want := range map[string]string{
		"server = ":                                        hostsFile,
		"[host.\"https://a\"]\nca = 5\n":                   "containerd would not",
		"server = \"https://a\"\nca = \"/absent\"\n":       "/absent",
		"[host.\"https://a\"]\ncapabilities = [\"fly\"]\n": "capability",
		"[host.\"http://a:5000\"]\nskip_verify = true\n":   "https://",
	} {
		dir := hostsDir(t, "host.example:5000", content)
		registries := *source(t, "host.example:5000").allowed.Load().registries
		registries.HostsDir = dir
		err := registries.CheckHosts(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--image-hosts") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", content, err, want)
		}
	}
}

// TestTokensExpire: a token is good for two requests.
func TestTokensExpire(t *testing.T) {
	stock, _ := stocked(t)
	var tokens, left atomic.Int64
	var url string
	url, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			left.Store(2)
			fmt.Fprintf(w, `{"token":"%d"}`, tokens.Add(1))
		case r.Header.Get("Authorization") != fmt.Sprintf("Bearer %d", tokens.Load()),
			left.Add(-1) < 0:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+url+`/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			stock.ServeHTTP(w, r)
		}
	}))
	if err := fetched(t, source(t, url), strings.TrimPrefix(url, "http://")+"/a:1"); err != nil {
		t.Error(err)
	}
	if n := tokens.Load(); n < 2 {
		t.Errorf("%d tokens were asked for", n)
	}
}

// TestCredentialHelpers: a program says what a namespace pulls with.
func TestCredentialHelpers(t *testing.T) {
	stock, _ := stocked(t)
	var sent atomic.Value
	url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Store(r.Header.Get("Authorization"))
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		stock.ServeHTTP(w, r)
	}))
	host := strings.TrimPrefix(url, "http://")
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := func(name, script string) {
		if err := os.WriteFile(filepath.Join(bin, "docker-credential-"+name),
			[]byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	helper("good", `read server; echo "{\"Username\":\"$1\",\"Secret\":\"$server\"}"`)
	helper("none", `echo credentials not found in native keychain; exit 1`)
	helper("bad", `echo it is locked; exit 1`)
	file := filepath.Join(t.TempDir(), "credentials")
	keys := func(content string) (Credentials, error) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadCredentials(file)
	}
	s := source(t, url)
	pull := func(content string) error {
		c, err := keys(content)
		if err != nil {
			t.Fatal(err)
		}
		s.Allow(s.allowed.Load().registries, c)
		return fetched(t, s, host+"/a:1")
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("get:"+host))
	for _, content := range []string{
		`{"tenant": {"credHelpers": {"` + host + `": "good"}, "credsStore": "bad"}}`,
		`{"tenant": {"credHelpers": {"http://` + host + `/v1/": "good"}}}`,
		`{"tenant": {"credsStore": "good"}}`,
	} {
		if err := pull(content); err != nil || sent.Load() != want {
			t.Errorf("%s: %v, sent %q", content, err, sent.Load())
		}
	}
	for content, words := range map[string]string{
		`{"tenant": {"credsStore": "none"}}`:   "unauthorized",
		`{"tenant": {"credsStore": "bad"}}`:    "it is locked",
		`{"tenant": {"credsStore": "absent"}}`: "docker-credential-absent",
		`{"other": {"credsStore": "good"}}`:    "unauthorized",
	} {
		if err := pull(content); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v; want %q", content, err, words)
		}
	}
	for _, content := range []string{`{"": {}}`, `{"a": {"credsStore": "../x"}}`,
		`{"a": {"credHelpers": {"h": "x y"}}}`, `{"a": {"auths": {"https://": {}}}}`} {
		if _, err := keys(content); err == nil {
			t.Errorf("%s was taken", content)
		}
	}
	hub := Credentials{"a": {store: "good"}}
	auth, _, err := hub.of(context.Background(), "a", name.DefaultRegistry)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := auth.Authorization(); err != nil || c.Password != "https://index.docker.io/v1/" {
		t.Errorf("Docker Hub's is asked for as %q", c.Password)
	}
}

func TestManifestsThatAreRefused(t *testing.T) {
	for _, m := range map[string]struct{ kind, content, want string }{
		"schema 1": {"application/vnd.docker.distribution.manifest.v1+prettyjws",
			`{"schemaVersion":1,"name":"a","tag":"1","fsLayers":[]}`, "schema 1"},
		"schema 1, by its version alone": {"application/json", `{"schemaVersion":1}`, "schema 1"},
		"another platform": {"application/vnd.oci.image.index.v1+json", `{"schemaVersion":2,` +
			`"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"digest":` +
			`"sha256:` + strings.Repeat("a", 64) + `","platform":{"os":"linux",` +
			`"architecture":"arm64"}},{"digest":"sha256:` + strings.Repeat("b", 64) +
			`","platform":{"os":"linux","architecture":"amd64","variant":"v4"}}]}`, "linux/amd64"},
	} {
		url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", m.kind)
			_, _ = io.WriteString(w, m.content)
		}))
		refused(t, source(t, url), strings.TrimPrefix(url, "http://")+"/a:1", Unusable, m.want)
	}
}
