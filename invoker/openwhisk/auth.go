package openwhisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/whole"
)

// A Key is the one that an invoker is started with; it opens the namespace guest.
type Key struct {
	access.Key
	wellKnown bool
}

// Open returns the key if everybody who can reach the listener knows it, and "" if it is a secret.
func (k Key) Open() string {
	if k.wellKnown {
		return k.String()
	}
	return ""
}

func (k Key) subject() *access.Subject {
	return &access.Subject{Name: access.Guest,
		Namespaces: []access.Namespace{k.Owned(access.Guest)}}
}

// The key that every OpenWhisk test installation and client knows. Everybody who can reach the
// listener knows it too, so only loopback listeners take it.
var guest = Key{access.Key{
	UUID:   "23bc46b1-71f6-4ed5-8c54-816aa4f8c502",
	Secret: "123zO3xZCLrMN6v2BKK1dXYFpXlPkccOFqm12CdAsMgRU4VrNZ9lyGVCGuMDGIwP",
}, true}

// LoadKey returns the key for a listener at that address, and others. If all are on loopback, that
// is the well-known guest key. Else it is the one in file, which is generated at first start and
// readable by its owner only.
func LoadKey(listen, file string, others ...string) (Key, error) {
	here := true
	for _, address := range append([]string{listen}, others...) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return Key{}, fmt.Errorf("listen address %q: want host:port: %w", address, err)
		}
		here = here && isLoopback(host)
	}
	if here {
		return guest, nil
	}
	content, err := readKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		return generateKey(file)
	}
	if err != nil {
		return Key{}, fmt.Errorf("the API key: %w", err)
	}
	user, secret, found := strings.Cut(strings.TrimSpace(string(content)), ":")
	if !found || user == "" || len(secret) < 32 {
		return Key{}, fmt.Errorf(
			"%s holds no API key (user:secret, the secret of 32 characters or more); remove it to have one made",
			file)
	}
	return Key{Key: access.Key{UUID: user, Secret: secret}}, nil
}

// readKey reads a file of root's or of this user's own, and only that: others may write to its
// directory, and a name that they make there could lead to any file of ours. Its group may read it.
func readKey(file string) ([]byte, error) {
	in, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; put the key itself there", file)
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d; it must be yours or root's", file, st.Uid)
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1:
		return nil, fmt.Errorf("%s is not a file of one name; remove it to have one made", file)
	case st.Mode&0o037 != 0:
		return nil, fmt.Errorf("%s can be read by others; chmod 600 it", file)
	}
	return io.ReadAll(io.LimitReader(in, 4<<10))
}

func generateKey(file string) (Key, error) {
	key := Key{Key: access.NewKey()}
	if err := whole.Write(file, fmt.Appendln(nil, key), 0o600, whole.New); err != nil {
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

// A request holds what every handler needs to know of its call.
type request struct {
	user        *access.Identity
	key         access.Key // as the caller sent it: some actions are given it
	namespace   string     // the one in the path; "_" is the caller's own
	transaction string
	accepted    time.Time
	bytes       holding // the memory it holds
}

// own is the caller's namespace, which the path must name.
func (rq *request) own() (string, error) {
	if rq.namespace != rq.user.Namespace {
		return "", fail(http.StatusForbidden,
			"the key does not open the namespace %q", rq.namespace)
	}
	return rq.namespace, nil
}

// ration counts requests that read and those that change entities; a POST counts itself.
func (rq *request) ration(method string) error {
	switch method {
	case http.MethodGet, http.MethodHead:
		return rq.user.Read(rq.accepted, rq.user.Limits)
	case http.MethodPut, http.MethodDelete:
		return rq.user.Change(rq.accepted, rq.user.Limits)
	}
	return nil
}

type handler func(w http.ResponseWriter, r *http.Request, rq *request) error

// authenticated serves requests that carry a key.
func (a *API) authenticated(serve handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := request{accepted: time.Now(), transaction: begin(w, r)}
		defer rq.bytes.end()
		a.shareWith(w, r)
		err := a.admit(w, r, &rq)
		if err == nil {
			err = a.serve(serve, w, r, &rq)
		}
		if err != nil {
			a.metrics.refuse("api", err)
			answerError(w, err)
		}
	})
}

// serve has a handler serve a request that was admitted. Its body may take a while. A request that
// changes anything is counted, so that the namespace is not given to another owner meanwhile.
func (a *API) serve(serve handler, w http.ResponseWriter, r *http.Request, rq *request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if err := a.directory.Enter(rq.user); err != nil {
			return refused(w, err)
		}
		defer rq.user.Leave()
	}
	if err := rq.ration(r.Method); err != nil {
		return err
	}
	return serve(w, r, rq)
}

// refused is why a key does not open.
func refused(w http.ResponseWriter, err error) error {
	if errors.Is(err, access.ErrBlocked) {
		return fail(http.StatusForbidden, "%v", err)
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="fastiov"`)
	return fail(http.StatusUnauthorized, "%v", err)
}

// Admit returns the sender of a request that is served beside the API, by the rules of the API. If
// the request is not allowed, Admit answers it and returns nil.
func (a *API) Admit(w http.ResponseWriter, r *http.Request) *access.Identity {
	rq := request{transaction: begin(w, r)}
	if err := a.admit(w, r, &rq); err != nil {
		a.metrics.refuse("page", err)
		answerError(w, err)
		return nil
	}
	return rq.user
}

// Identify returns whose key it is that came with a request, if the request may use it.
func (a *API) Identify(r *http.Request, key access.Key) (*access.Identity, error) {
	// A page of some web site whose name was made to resolve to 127.0.0.1 knows the well-known key
	// as well.
	if a.cfg.Key.wellKnown && !isLoopback(hostOf(r)) {
		return nil, fail(http.StatusForbidden, "this API answers on loopback names only, not as %q",
			r.Host)
	}
	user, err := a.directory.Identify(key.UUID, key.Secret)
	if err != nil && r.Header.Get("Authorization") != "" {
		a.denials.tell(a.cfg.Log, r, err, time.Now())
	}
	return user, err
}

func (a *API) admit(w http.ResponseWriter, r *http.Request, rq *request) (err error) {
	rq.key.UUID, rq.key.Secret, _ = r.BasicAuth()
	rq.user, err = a.Identify(r, rq.key)
	switch {
	case errors.Is(err, access.ErrUnknown), errors.Is(err, access.ErrBlocked):
		return refused(w, err)
	case err != nil:
		return err
	}
	rq.bytes = a.holding(rq.user)
	if rq.namespace = r.PathValue("namespace"); rq.namespace == "" || rq.namespace == "_" {
		rq.namespace = rq.user.Namespace
	}
	return nil
}

// shareWith lets pages of other sites read the answer, as OpenWhisk does. If the well-known key
// opens the API, only pages from this machine may: else any site that its user visits could call
// functions here.
func (a *API) shareWith(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return
	}
	h := w.Header()
	if a.cfg.Key.wellKnown {
		if !fromHere(r) {
			return
		}
		h.Set("Vary", "Origin")
	} else {
		origin = "*"
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Origin, X-Requested-With, Content-Type, Accept, User-Agent")
	h.Set("Access-Control-Allow-Methods", "GET, DELETE, POST, PUT, HEAD, OPTIONS")
	h.Set("Access-Control-Expose-Headers", "X-Request-ID, X-Openwhisk-Activation-Id")
}

// fromHere reports whether the request did not come from a page of another site.
func fromHere(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	from, err := url.Parse(origin)
	return origin == "" || err == nil && isLoopback(from.Hostname())
}

func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return r.Host
}
