package openwhisk

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// A Key is what callers prove themselves with, by HTTP's Basic scheme, and who they then are.
type Key struct {
	User      string
	Secret    string
	Namespace string
	wellKnown bool
}

// The key that every OpenWhisk test installation and client knows. Whoever can reach the listener knows it too, so only loopback
// listeners take it.
var guest = Key{
	User:      "23bc46b1-71f6-4ed5-8c54-816aa4f8c502",
	Secret:    "123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP",
	Namespace: "guest",
	wellKnown: true,
}

// String is the key as clients take it: user:secret.
func (k Key) String() string { return k.User + ":" + k.Secret }

// LoadKey returns the key for a listener at that address: the well-known guest key on loopback; elsewhere the one in file, which is
// generated at first start and readable by its owner only.
func LoadKey(listen, file string) (Key, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return Key{}, fmt.Errorf("listen address %q: want host:port: %w", listen, err)
	}
	if isLoopback(host) {
		return guest, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return generateKey(file)
	}
	if err != nil {
		return Key{}, fmt.Errorf("the API key: %w", err)
	}
	user, secret, found := strings.Cut(strings.TrimSpace(string(content)), ":")
	if !found || user == "" || len(secret) < 32 {
		return Key{}, fmt.Errorf("%s holds no API key (user:secret, the secret of 32 characters or more); remove it to have one made", file)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		return Key{}, fmt.Errorf("%s can be read by others; chmod 600 it", file)
	}
	return Key{User: user, Secret: secret, Namespace: guest.Namespace}, nil
}

func generateKey(file string) (Key, error) {
	var random [48]byte
	rand.Read(random[:]) // cannot fail
	key := Key{User: hex.EncodeToString(random[:16]), Secret: hex.EncodeToString(random[16:]), Namespace: guest.Namespace}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return Key{}, fmt.Errorf("the API key cannot be kept: %w", err)
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Key{}, fmt.Errorf("the API key cannot be kept: %w", err)
	}
	_, err = fmt.Fprintln(out, key)
	if err = errors.Join(err, out.Close()); err != nil {
		os.Remove(file)
		return Key{}, fmt.Errorf("the API key cannot be kept: %w", err)
	}
	return key, nil
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback()
}

// authenticated serves requests that carry the key, within the namespace that is theirs.
func (a *API) authenticated(serve func(w http.ResponseWriter, r *http.Request, namespace string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin(w)
		namespace, err := a.admit(w, r)
		if err == nil {
			err = serve(w, r, namespace)
		}
		if err != nil {
			answerError(w, err)
		}
	})
}

func (a *API) admit(w http.ResponseWriter, r *http.Request) (namespace string, err error) {
	// A page of some web site whose name was made to resolve to 127.0.0.1 knows the well-known key as well.
	if a.cfg.Key.wellKnown && !isLoopback(hostOf(r)) {
		return "", fail(http.StatusForbidden, "this API answers on loopback names only, not as %q", r.Host)
	}
	user, secret, _ := r.BasicAuth()
	same := subtle.ConstantTimeCompare([]byte(user), []byte(a.cfg.Key.User)) & subtle.ConstantTimeCompare([]byte(secret), []byte(a.cfg.Key.Secret))
	if same != 1 {
		w.Header().Set("WWW-Authenticate", `Basic realm="fastiov"`)
		return "", fail(http.StatusUnauthorized, "the supplied authentication is invalid; send the API key by HTTP Basic authentication")
	}
	namespace = a.cfg.Key.Namespace
	if asked := r.PathValue("namespace"); asked != "" && asked != "_" && asked != namespace {
		return "", fail(http.StatusForbidden, "the key does not open the namespace %q", asked)
	}
	return namespace, nil
}

func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return r.Host
}
