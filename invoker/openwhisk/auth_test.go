package openwhisk

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestLoadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "api-key")
	for _, listen := range []string{"127.0.0.1:3233", "localhost:3233", "[::1]:0", "127.8.8.8:1"} {
		key, err := LoadKey(listen, file)
		if err != nil || key != guest {
			t.Errorf("%s: %v, %v; want the guest key", listen, key, err)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a key was made for loopback")
	}
	var made Key
	for _, listen := range []string{"0.0.0.0:3233", ":3233", "[::]:3233", "example.org:80",
		"10.0.3.15:1"} {
		key, err := LoadKey(listen, file)
		if err != nil || key.Secret == guest.Secret || len(key.Secret) < 32 {
			t.Fatalf("%s: %v, %v", listen, key, err)
		}
		if made != (Key{}) && key != made {
			t.Errorf("%s: another key than before", listen)
		}
		made = key
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
}

func TestLoadKeyRefusesABadFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	secret := strings.Repeat("x", 40)
	for _, c := range []struct {
		content string
		mode    os.FileMode
		says    string
	}{
		{"", 0o600, "no API key"},
		{"user:short", 0o600, "no API key"},
		{"user:" + secret, 0o644, "chmod 600"},
	} {
		if err := os.WriteFile(file, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey("127.0.0.1:1", file, "0.0.0.0:1"); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%q %o: %v", c.content, c.mode, err)
		}
	}
	if _, err := LoadKey("nonsense", file); err == nil {
		t.Error("an address without a port was taken")
	}
}

func TestOnlyTheKeyOpens(t *testing.T) {
	c := newClient(t)
	for _, credentials := range [][2]string{{"", ""}, {guest.UUID, "wrong"},
		{"wrong", guest.Secret}} {
		r := httptest.NewRequest("GET", "http://127.0.0.1/api/v1/namespaces", nil)
		if credentials[0] != "" {
			r.SetBasicAuth(credentials[0], credentials[1])
		}
		got := c.send(r)
		c.want(401, got)
		if !strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Basic") {
			t.Error("no challenge")
		}
	}
	if got := c.do("GET", "/namespaces", ""); string(got.body) != `["guest"]` {
		t.Errorf("namespaces: %s", got.body)
	}
	// The well-known key does not open the door to a web site whose name was made to point here.
	r := httptest.NewRequest("GET", "http://rebound.example/api/v1/namespaces", nil)
	r.SetBasicAuth(guest.UUID, guest.Secret)
	c.want(403, c.send(r))
}

// A handler that is served beside the API lets in the same callers as the API.
func TestAdmit(t *testing.T) {
	c := newClient(t)
	for _, k := range []struct {
		url, secret string
		status      int
	}{
		{"http://127.0.0.1/ui/feed", guest.Secret, 200},
		{"http://127.0.0.1/ui/feed", "wrong", 401},
		{"http://rebound.example/ui/feed", guest.Secret, 403},
	} {
		r, w := httptest.NewRequest("GET", k.url, nil), httptest.NewRecorder()
		r.SetBasicAuth(guest.UUID, k.secret)
		who := c.api.Admit(w, r)
		if w.Code != k.status || (who != nil) != (k.status == 200) ||
			who != nil && who.Namespace != "guest" {
			t.Errorf("%s with %.9s: HTTP %d, %+v", k.url, k.secret, w.Code, who)
		}
	}
	if guest.Open() != guest.String() || (Key{Key: guest.Key}).Open() != "" {
		t.Error("a key is open that is not well known, or the other way round")
	}
}

func TestInfoNeedsNoKey(t *testing.T) {
	c := newClient(t)
	c.want(200, c.send(httptest.NewRequest("GET", "http://127.0.0.1/api/v1", nil)))
}

func TestNewWantsAKey(t *testing.T) {
	if _, err := New(Config{}, nil, prometheus.NewRegistry()); err == nil {
		t.Error("an API without a key was made")
	}
}
