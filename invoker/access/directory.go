package access

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fastiov/fastiov/invoker/store"
)

// An Identity is a caller in one namespace. All calls of the caller share it.
type Identity struct {
	Subject   string
	Namespace string
	UUID      string
	Limits    Allowance
	Blocked   bool
	*Usage    // outlives a change of the subject

	hash [sha256.Size]byte
}

// Errors of Identify, Enter and Owner.
var (
	ErrUnknown = errors.New(
		"the supplied authentication is invalid; send uuid:key by HTTP Basic authentication")
	ErrBlocked = errors.New("the subject is blocked")
)

// A Directory finds identities. A look-up takes no lock.
type Directory struct {
	defaults Allowance
	byUUID   sync.Map // *Identity
	byName   sync.Map // *Identity, by namespace

	mu       sync.Mutex
	subjects map[string]kept
	claims   map[string]claim  // by namespace
	usage    map[string]*Usage // by namespace
}

type kept struct {
	Subject
	revision uint64 // in the store; 0: in no store
}

// NewDirectory returns an empty directory. defaults are the limits of subjects without limits of
// their own.
func NewDirectory(defaults Limits) *Directory {
	return &Directory{
		defaults: defaults.Over(Defaults),
		subjects: map[string]kept{}, claims: map[string]claim{}, usage: map[string]*Usage{},
	}
}

// Identify returns the identity that a key proves.
func (d *Directory) Identify(uuid, secret string) (*Identity, error) {
	found, known := d.byUUID.Load(uuid)
	if !known {
		return nil, ErrUnknown // a uuid is not secret: the answer may show that it is unknown
	}
	identity := found.(*Identity)
	switch {
	case !opens(secret, &identity.hash):
		return nil, ErrUnknown
	case identity.Blocked:
		return nil, ErrBlocked
	}
	return identity, nil
}

// Knows reports whether there is a key with that uuid, be its subject blocked or not.
func (d *Directory) Knows(uuid string) bool {
	_, known := d.byUUID.Load(uuid)
	return known
}

// Enter counts a request that may leave something in its caller's namespace, until Leave. A purge
// waits for such requests. So until the request leaves, its caller still owns the namespace.
func (d *Directory) Enter(who *Identity) error {
	// counted first: a purge of an owner that is deleted from now on waits for it
	who.requests.Add(1)
	found, known := d.byUUID.Load(who.UUID)
	switch {
	case !known:
		who.Leave()
		return ErrUnknown
	case found.(*Identity).Blocked:
		who.Leave()
		return ErrBlocked
	}
	return nil
}

// Owner returns the identity that owns a namespace. Anonymous calls of what the namespace publishes
// count as the owner's.
func (d *Directory) Owner(namespace string) (*Identity, error) {
	found, known := d.byName.Load(namespace)
	if !known {
		return nil, fmt.Errorf("there is no namespace %q", namespace)
	}
	if identity := found.(*Identity); !identity.Blocked {
		return identity, nil
	}
	return nil, ErrBlocked
}

// Space returns the bounds of what a namespace's entities may take.
func (d *Directory) Space(namespace string) store.Space {
	if found, known := d.byName.Load(namespace); known {
		return found.(*Identity).Limits.Space()
	}
	return d.defaults.Space()
}

// See adopts a change of the store. It ignores documents of other kinds.
func (d *Directory) See(doc store.Doc) error {
	if doc.Kind == store.Claims {
		return d.seeClaim(doc)
	}
	if doc.Kind != store.Subjects {
		return nil
	}
	if doc.Body == nil {
		d.know(&Subject{Name: doc.Name}, nil, 0)
		return nil
	}
	var s Subject
	if err := json.Unmarshal(doc.Body, &s); err != nil {
		return fmt.Errorf("subject %q: %w", doc.Name, err)
	}
	s.Name = doc.Name
	return d.add(&s, doc.Revision)
}

// Add adds a subject that is in no store.
func (d *Directory) Add(s *Subject) error { return d.add(s, 0) }

func (d *Directory) add(s *Subject, revision uint64) error {
	identities := make([]*Identity, len(s.Namespaces))
	for i, n := range s.Namespaces {
		identity := &Identity{
			Subject: s.Name, Namespace: n.Name, UUID: n.UUID, Limits: s.Limits.Over(d.defaults),
			Blocked: s.Blocked,
		}
		if hash, err := hex.DecodeString(n.Hash); err != nil ||
			copy(identity.hash[:], hash) != sha256.Size {
			return fmt.Errorf("subject %q: the hash of the key of %q is none", s.Name, n.Name)
		}
		identities[i] = identity
	}
	d.know(s, identities, revision)
	return nil
}

// know replaces what is known of a subject; without identities the subject is gone.
func (d *Directory) know(s *Subject, identities []*Identity, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	keep := map[string]bool{}
	for _, identity := range identities {
		identity.Usage = d.usageOf(identity.Namespace)
		d.byUUID.Store(identity.UUID, identity)
		d.byName.Store(identity.Namespace, identity)
		keep[identity.UUID], keep[identity.Namespace] = true, true
	}
	for _, n := range d.subjects[s.Name].Namespaces {
		if !keep[n.UUID] {
			d.byUUID.Delete(n.UUID)
		}
		if !keep[n.Name] {
			d.byName.Delete(n.Name)
		}
	}
	if identities == nil {
		delete(d.subjects, s.Name)
	} else {
		d.subjects[s.Name] = kept{*s, revision}
	}
}

// Usage returns the counters of a namespace.
func (d *Directory) Usage(namespace string) *Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usageOf(namespace)
}

func (d *Directory) usageOf(namespace string) *Usage {
	usage := d.usage[namespace]
	if usage == nil {
		usage = &Usage{}
		d.usage[namespace] = usage
	}
	return usage
}

// subject returns what is known of the subject with that name.
func (d *Directory) subject(name string) (kept, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, found := d.subjects[name]
	return k, found
}

// List returns every subject, by name.
func (d *Directory) List() []Subject {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []Subject{}
	for _, name := range slices.Sorted(maps.Keys(d.subjects)) {
		list = append(list, d.subjects[name].Subject)
	}
	return list
}

// Defaults returns the limits of subjects without limits of their own.
func (d *Directory) Defaults() Allowance { return d.defaults }
