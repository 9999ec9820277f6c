package oci

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func source(t *testing.T, entries ...string) *Source {
	t.Helper()
	registries, err := ParseRegistries(entries)
	if err != nil {
		t.Fatal(err)
	}
	s := &Source{Fetched: func(int64) {}}
	s.Allow(registries, nil)
	return s
}

func TestWhichRegistriesAreAllowed(t *testing.T) {
	r := source(t, "docker.io", "ghcr.io", "*.example.org", "host.example:8443",
		"http://127.0.0.1:5000").allowed.Load().registries
	for ref, want := range map[string]bool{
		"busybox": true, "library/busybox:1": true, "docker.io/a/b": true,
		"index.docker.io/a/b": true,
		"ghcr.io/a/b":         true, "ghcr.io:444/a/b": false, "quay.io/a/b": false,
		"evilghcr.io/a/b": false,
		"a.example.org/b": true, "a.b.example.org/c": true, "example.org/b": false,
		"aexample.org/b":      false,
		"host.example:8443/a": true, "host.example/a": false, "127.0.0.1:5000/a": true,
		"127.0.0.1:5001/a": false, "localhost:5000/a": false,
	} {
		_, err := r.parse(ref)
		var why because
		if (err == nil) != want || err != nil && (!errors.As(err, &why) ||
			why.Reason != NotAllowed ||
			!strings.Contains(err.Error(), "--image-registries")) {
			t.Errorf("%s: %v, want allowed %v", ref, err, want)
		}
	}
	for _, bad := range []string{"", "ftp://a.b", "http://a.b/c", "a.b/c", "*", "a.*.b",
		"https://u:p@a.b"} {
		if _, err := ParseRegistries([]string{bad}); err == nil {
			t.Errorf("%q was taken for a registry", bad)
		}
	}
}

func TestPublicAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "127.0.0.1": false, "::1": false,
		"10.1.2.3":   false,
		"172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "fd00:ec2::254": false,
		"fe80::1": false, "100.64.0.1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false,
		"255.255.255.255": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"64:ff9b::a9fe:a9fe": false, "198.18.0.1": false, "::127.0.0.1": false,
		"2002:7f00:1::": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: public %v, want %v", address, got, want)
		}
	}
}

// refused checks that a pull is refused with this reason and these words.
func refused(t *testing.T, s *Source, ref string, why Reason, words string) {
	t.Helper()
	_, err := s.Find(t.Context(), ref, "tenant")
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != why || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v; want %q and %q in it", ref, err, why, words)
	}
	if r != nil && strings.Contains(r.Terse(), "--") {
		t.Errorf("callers are told %q", r.Terse())
	}
}

func TestPrivateAddressesAreRefusedUnlessTold(t *testing.T) {
	var asked int
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked++
	}))
	defer inside.Close()
	host := strings.TrimPrefix(inside.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	byName := "localhost:" + port // allowed by its name, which resolves to the loopback
	refused(t, source(t, byName), byName+"/a:1", NotAllowed, "--image-registries")
	refused(t, source(t, host), host+"/a:1", NotAllowed, "--image-registries")
	refused(t, source(t, "https://"+host), host+"/a:1", NotAllowed, "--image-registries")
	if asked > 0 {
		t.Errorf("%d requests reached a private address", asked)
	}
	refused(t, source(t, inside.URL), host+"/a:1", Unusable, "")
	if asked == 0 {
		t.Error("no request reached the registry that was told")
	}
}

func TestRedirectsAndRealmsAreHeldToTheRule(t *testing.T) {
	var asked int
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		fmt.Fprint(w, `{"token":"t"}`)
	}))
	defer inside.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(inside.URL, "http://"), ":")
	var to string
	var challenge bool
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case challenge:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path != "/v2/":
			http.Redirect(w, r, to, http.StatusFound)
		}
	}))
	defer outer.Close()
	host := strings.TrimPrefix(outer.URL, "http://")
	for _, challenge = range []bool{false, true} {
		for _, to = range []string{"http://localhost:" + port + "/x",
			"https://localhost:" + port + "/x"} {
			_, err := source(t, outer.URL).Find(t.Context(), host+"/a:1", "tenant")
			if err == nil {
				t.Errorf("%s was followed (as a realm: %v)", to, challenge)
			}
		}
	}
	if asked > 0 {
		t.Errorf("%d requests reached a private address", asked)
	}
}

func TestCredentialsAreANamespacesOwn(t *testing.T) {
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get("Authorization"))
		if r.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	s := source(t, server.URL)
	file := filepath.Join(t.TempDir(), "credentials")
	content := `{"tenant": {"auths": {"` + host + `": {"username": "u", "password": "p"}}}}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	credentials, err := ReadCredentials(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Allow(s.allowed.Load().registries, credentials)
	secret := "Basic " + base64.StdEncoding.EncodeToString([]byte("u:p"))
	refused(t, s, host+"/a:1", Unauthorized, "")
	if got := strings.Join(sent, ","); !strings.Contains(got, secret) {
		t.Errorf("sent %q, want %q", got, secret)
	}
	sent = nil
	if _, err := s.Find(t.Context(), host+"/a:1", "another"); err == nil ||
		strings.Join(sent, "") != "" {
		t.Errorf("another namespace's pull sent %q, %v", sent, err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCredentials(file); err == nil || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("a file that others may read: %v", err)
	}
}

func TestTheOperatorsOwnCredentialsAreNotUsed(t *testing.T) {
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent += r.Header.Get("Authorization")
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	home := t.TempDir()
	t.Setenv("DOCKER_CONFIG", home)
	config := `{"auths":{"` + host + `":{"username":"operator","password":"secret"}}}`
	if err := os.WriteFile(filepath.Join(home, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, source(t, server.URL), host+"/a:1", Unauthorized, "")
	if sent != "" {
		t.Errorf("sent %q", sent)
	}
}

func TestCredentialsStayWithTheirOwner(t *testing.T) {
	for pair, want := range map[string]bool{
		"auth.docker.io index.docker.io": true, "gitlab.com registry.gitlab.com": true,
		"evil.io index.docker.io": false, "a.co.uk b.co.uk": false, "1.2.3.4 1.2.3.5": false,
	} {
		a, b, _ := strings.Cut(pair, " ")
		if got := sameSite(a, b); got != want {
			t.Errorf("%s: %v, want %v", pair, got, want)
		}
	}
	s := source(t, "ghcr.io")
	way := newRoad(s.allowed.Load().registries, "ghcr.io", true, s.Fetched)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r, _ := http.NewRequest(method, "https://evil.example/token", nil)
		r.Header.Set("Authorization", "Basic x")
		if _, err := way.RoundTrip(r); err == nil || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestAnImagesUser(t *testing.T) {
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	accounts := map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nnode:x:1000:1001::/:\n",
		"etc/group":  "staff:x:50:\n",
	}
	for name, content := range accounts {
		if err := tree.Write(name, 0o644, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	for user, want := range map[string]string{
		"": "0 0", "node": "1000 1001", "1000": "1000 1001", "node:staff": "1000 50", "7": "7 0",
		"7:8":    "7 8",
		"nobody": "not in its /etc/passwd", "node:nobody": "not in its /etc/group",
		"-1": "not in its /etc/passwd", "4294967296": "not in its",
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
