package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fastiov/fastiov/invoker/store"
)

// A claim names the present or former owner of a namespace. Each namespace has one such document,
// so of two subjects that want one name at once only one gets it. The claim stays when its subject
// is deleted, for as long as the namespace may hold anything, so that nobody else gets what the
// subject left behind.
type claim struct {
	Subject string `json:"subject"`
	Purging bool   `json:"purging,omitempty"` // what the namespace holds is being deleted

	revision uint64
}

// claimKey returns the key under which a store keeps the claim to a namespace.
func claimKey(namespace string) store.Key {
	return store.Key{Kind: store.Claims, Namespace: "_", Name: namespace}
}

func parseClaim(doc store.Doc) (c claim, err error) {
	c.revision = doc.Revision
	if err = json.Unmarshal(doc.Body, &c); err != nil {
		err = fmt.Errorf("claim of %q: %w", doc.Name, err)
	}
	return c, err
}

// Purged returns the namespace that is being purged according to a document of the store.
func Purged(doc store.Doc) (namespace string, is bool) {
	if doc.Kind != store.Claims || doc.Body == nil {
		return "", false
	}
	c, err := parseClaim(doc)
	return doc.Name, err == nil && c.Purging
}

func (d *Directory) seeClaim(doc store.Doc) (err error) {
	var c claim
	if doc.Body != nil {
		if c, err = parseClaim(doc); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if doc.Body == nil {
		delete(d.claims, doc.Name)
	} else {
		d.claims[doc.Name] = c
	}
	return nil
}

func (d *Directory) claim(namespace string) (claim, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, found := d.claims[namespace]
	return c, found
}

// left returns a namespace that a deleted subject had and that has no owner now.
func (d *Directory) left(subject string) (namespace string, c claim, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for namespace, c := range d.claims {
		if _, owned := d.byName.Load(namespace); c.Subject == subject && !owned {
			return namespace, c, true
		}
	}
	return "", claim{}, false
}

// underWay returns how many calls and other requests of a namespace this process has not ended.
func (d *Directory) underWay(namespace string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if usage := d.usage[namespace]; usage != nil {
		return max(usage.UnderWay(), int(usage.requests.Load())) // one call may be counted in both
	}
	return 0
}

// putClaim returns store.ErrConflict if somebody else was first.
func (r *Register) putClaim(ctx context.Context, namespace string, c claim) (claim, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return c, err
	}
	doc := store.Doc{Key: claimKey(namespace), Revision: c.revision, Body: body}
	c.revision, err = r.Store.Put(ctx, doc, nil, store.Unbounded)
	return c, err
}

// free returns an error for a namespace that has an owner or still holds something.
func (r *Register) free(ctx context.Context, namespace string) error {
	if _, taken := r.Directory.byName.Load(namespace); taken {
		return fmt.Errorf(
			"namespace %q: %w", namespace, ErrExists)
	}
	c, claimed := r.Directory.claim(namespace)
	if claimed && c.Purging {
		return fmt.Errorf(
			"namespace %q is being purged; `fastiov user delete %q --purge` finishes that",
			namespace, c.Subject)
	}
	if claimed {
		return fmt.Errorf(
			"namespace %q may hold what %q left; `fastiov user delete %[2]q --purge` deletes that",
			namespace, c.Subject)
	}
	holds, err := r.holds(ctx, namespace)
	if err == nil && holds {
		err = fmt.Errorf("namespace %q holds what its former subject left;"+
			" `fastiov user delete %[1]q --purge` deletes that", namespace)
	}
	return err
}

// take claims a free namespace.
func (r *Register) take(ctx context.Context, namespace, subject string) (claim, error) {
	if err := r.free(ctx, namespace); err != nil {
		return claim{}, err
	}
	c, err := r.putClaim(ctx, namespace, claim{Subject: subject})
	if errors.Is(err, store.ErrConflict) {
		err = ErrExists
	}
	if err != nil {
		err = fmt.Errorf("namespace %q: %w", namespace, err)
	}
	return c, err
}
