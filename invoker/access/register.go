package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"

	"github.com/fastiov/fastiov/invoker/store"
)

// A Register creates and changes the subjects of a store. The directory watches that store.
type Register struct {
	Store     store.Store
	Directory *Directory
}

// Errors of a Register.
var (
	ErrExists = errors.New("it exists already")
	ErrNobody = errors.New("there is no such subject")
	ErrFixed  = errors.New("it is built in: this invoker was started with its key")
)

var subjectName = regexp.MustCompile(`^\w([\w@ .&-]{0,254}[\w@.&-])?$`)

// storeKey returns the key under which a store keeps a subject. No namespace is called "_".
func storeKey(name string) store.Key {
	return store.Key{Kind: store.Subjects, Namespace: "_", Name: name}
}

// Create makes a subject with one namespace and returns the key that opens it. The key cannot be
// read again later.
func (r *Register) Create(ctx context.Context, name, namespace string, limits Limits) (Key, error) {
	for _, text := range []string{name, namespace} {
		if !subjectName.MatchString(text) || text == "_" {
			return Key{}, fmt.Errorf(
				"%.300q is no name: letters, digits and _@ .&-, beginning with a letter, digit or _",
				text)
		}
	}
	if name == Guest || namespace == Guest {
		return Key{}, fmt.Errorf("%q: %w", Guest, ErrFixed)
	}
	if err := limits.check(); err != nil {
		return Key{}, err
	}
	if _, found := r.Directory.subject(name); found {
		return Key{}, fmt.Errorf("subject %q: %w", name, ErrExists)
	}
	c, err := r.take(ctx, namespace, name)
	if err != nil {
		return Key{}, err
	}
	key := NewKey()
	err = r.put(ctx,
		kept{Subject: Subject{Name: name, Namespaces: []Namespace{key.Owned(namespace)},
			Limits: limits}})
	if errors.Is(err, store.ErrConflict) {
		err = ErrExists
		if unclaimed := r.Store.Delete(ctx, claimKey(namespace), c.revision); unclaimed != nil {
			err = fmt.Errorf("%w; the claim to its namespace could not be undone: %v",
				err, unclaimed)
		}
	}
	if err != nil {
		return Key{}, fmt.Errorf("subject %q: %w", name, err)
	}
	return key, nil
}

func (r *Register) put(ctx context.Context, k kept) error {
	body, err := json.Marshal(&k.Subject)
	if err != nil {
		return err
	}
	doc := store.Doc{Key: storeKey(k.Name), Revision: k.revision, Body: body}
	_, err = r.Store.Put(ctx, doc, nil, store.Unbounded)
	return err
}

func (r *Register) find(name string) (kept, error) {
	k, found := r.Directory.subject(name)
	if !found {
		return k, fmt.Errorf("subject %q: %w", name, ErrNobody)
	}
	return k, nil
}

// changeable returns a subject that is in the store.
func (r *Register) changeable(name string) (kept, error) {
	k, err := r.find(name)
	if err == nil && k.revision == 0 {
		err = fmt.Errorf("subject %q: %w", name, ErrFixed)
	}
	return k, err
}

// Block blocks a subject, or unblocks it.
func (r *Register) Block(ctx context.Context, name string, blocked bool) error {
	k, err := r.changeable(name)
	if err != nil || k.Blocked == blocked {
		return err
	}
	k.Blocked = blocked
	return r.put(ctx, k)
}

// Revoke gives a subject a new key to its namespace. The old key opens nothing from then on;
// everything else stays. Earlier promises run with the key that they were made with.
func (r *Register) Revoke(ctx context.Context, name, namespace string) (key Key, err error) {
	k, err := r.changeable(name)
	if err != nil {
		return key, err
	}
	i := slices.IndexFunc(k.Namespaces, func(n Namespace) bool {
		return n.Name == namespace || namespace == ""
	})
	if i < 0 {
		return key, fmt.Errorf("subject %q has no namespace %q: %w", name, namespace, ErrNobody)
	}
	key = NewKey()
	k.Namespaces = slices.Clone(k.Namespaces) // the directory's own slice is read meanwhile
	k.Namespaces[i] = key.Owned(k.Namespaces[i].Name)
	return key, r.put(ctx, k)
}

// Limit sets some limits of a subject, for its later requests.
func (r *Register) Limit(ctx context.Context, name string, limits Limits) error {
	k, err := r.changeable(name)
	if err == nil {
		err = limits.check()
	}
	if err != nil {
		return err
	}
	all := Limits{}
	maps.Copy(all, k.Limits)
	maps.Copy(all, limits)
	k.Limits = all
	return r.put(ctx, k)
}

// Unlimit gives a subject the invoker's limits again.
func (r *Register) Unlimit(ctx context.Context, name string) error {
	k, err := r.changeable(name)
	if err != nil {
		return err
	}
	k.Limits = nil
	return r.put(ctx, k)
}

// Delete deletes a subject. The content of its namespaces stays, and nobody else gets them until
// they are purged.
func (r *Register) Delete(ctx context.Context, name string) error {
	k, err := r.changeable(name)
	if err != nil {
		return err
	}
	for _, n := range k.Namespaces { // a former version made no claims
		_, err := r.putClaim(ctx, n.Name, claim{Subject: name})
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("subject %q: %w", name, err)
		}
	}
	return r.Store.Delete(ctx, storeKey(name), k.revision)
}

// A Wish is the body of a POST that creates a subject or revokes its key.
type Wish struct {
	Subject   string `json:"subject"`
	Namespace string `json:"namespace"`
	Limits    Limits `json:"limits,omitempty"`
}

// ServeHTTP answers the subject commands of this machine. It authenticates nobody, so it must only
// be reachable through a socket that only root can open.
//
//	GET    /subjects                         POST /subjects
//	GET    /subjects/{name}                  DELETE /subjects/{name}
//	POST   /subjects/{name}/block            POST /subjects/{name}/unblock
//	POST   /subjects/{name}/purge            POST /subjects/{name}/revoke
//	POST   /subjects/{name}/limits           DELETE /subjects/{name}/limits
func (r *Register) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	mux := http.NewServeMux()
	serve := func(pattern string, do func(name string) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			answer, err := do(req.PathValue("name"))
			reply(w, answer, err)
		})
	}
	serve("GET /subjects", func(string) (any, error) { return r.Directory.List(), nil })
	serve("GET /subjects/{name}", func(name string) (any, error) {
		k, err := r.find(name)
		return k.Subject, err
	})
	serve("DELETE /subjects/{name}",
		func(name string) (any, error) { return struct{}{}, r.Delete(req.Context(), name) })
	serve("POST /subjects/{name}/block",
		func(name string) (any, error) { return struct{}{}, r.Block(req.Context(), name, true) })
	serve("POST /subjects/{name}/unblock",
		func(name string) (any, error) { return struct{}{}, r.Block(req.Context(), name, false) })
	serve("POST /subjects/{name}/purge",
		func(name string) (any, error) { return r.Purge(req.Context(), name) })
	read := func(to any) error {
		return json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<16)).Decode(to)
	}
	serve("POST /subjects/{name}/limits", func(name string) (any, error) {
		var limits Limits
		if err := read(&limits); err != nil {
			return nil, err
		}
		return struct{}{}, r.Limit(req.Context(), name, limits)
	})
	serve("DELETE /subjects/{name}/limits", func(name string) (any, error) {
		return struct{}{}, r.Unlimit(req.Context(), name)
	})
	serve("POST /subjects/{name}/revoke", func(name string) (any, error) {
		var wish Wish
		if err := read(&wish); err != nil {
			return nil, err
		}
		key, err := r.Revoke(req.Context(), name, wish.Namespace)
		return map[string]string{"key": key.String()}, err
	})
	serve("POST /subjects", func(string) (any, error) {
		var wish Wish
		if err := read(&wish); err != nil {
			return nil, err
		}
		if wish.Namespace == "" {
			wish.Namespace = wish.Subject
		}
		key, err := r.Create(req.Context(), wish.Subject, wish.Namespace, wish.Limits)
		return map[string]string{"key": key.String()}, err
	})
	mux.ServeHTTP(w, req)
}

func reply(w http.ResponseWriter, answer any, err error) {
	status := http.StatusOK
	switch {
	case errors.Is(err, ErrNobody), errors.Is(err, store.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrExists), errors.Is(err, ErrFixed), errors.Is(err, store.ErrConflict):
		status = http.StatusConflict
	case err != nil:
		status = http.StatusBadRequest
	}
	if err != nil {
		answer = map[string]string{"error": err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // if the caller has gone, there is nobody to answer
}
