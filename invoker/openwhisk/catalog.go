package openwhisk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

// A catalog is every entity of the store, decoded. Reading it takes no lock and no request; the
// store tells it of every change, by any invoker.
type catalog struct {
	entities store.Entities
	most     func(namespace string) store.Space // that its entities may take
	actions  collection[action]
	packages collection[entity.Package]
	triggers collection[entity.Trigger]
	rules    collection[entity.Rule]
}

func newCatalog(entities store.Entities, most func(namespace string) store.Space) *catalog {
	c := &catalog{entities: entities, most: most}
	c.actions = collection[action]{kind: store.Actions, noun: "action", decode: decodeAction}
	c.packages = collection[entity.Package]{kind: store.Packages, noun: "package",
		decode: decoded[entity.Package]}
	c.triggers = collection[entity.Trigger]{kind: store.Triggers, noun: "trigger",
		decode: decoded[entity.Trigger]}
	c.rules = collection[entity.Rule]{kind: store.Rules, noun: "rule", decode: decoded[entity.Rule]}
	return c
}

// see takes in a change and calls retired with the action that was replaced.
func (c *catalog) see(doc store.Doc, retired func(*action)) (err error) {
	switch doc.Kind {
	case store.Actions:
		var old *action
		if old, err = c.actions.see(doc); old != nil {
			retired(old)
		}
	case store.Packages:
		_, err = c.packages.see(doc)
	case store.Triggers:
		_, err = c.triggers.see(doc)
	case store.Rules:
		_, err = c.rules.see(doc)
	}
	return err
}

// A collection is the entities of one kind. A kept value never changes.
type collection[V any] struct {
	kind   store.Kind
	noun   string
	decode func(store.Doc) (*V, error)
	docs   sync.Map // slot[V] by store.Key

	mu sync.RWMutex                  // held while docs and of change
	of map[string]map[string]slot[V] // the same by namespace: a list costs nothing for others
}

type slot[V any] struct {
	value    *V
	revision uint64
}

func decoded[V any](doc store.Doc) (*V, error) {
	value := new(V)
	return value, json.Unmarshal(doc.Body, value)
}

func (c *collection[V]) key(namespace, name string) store.Key {
	return store.Key{Kind: c.kind, Namespace: namespace, Name: name}
}

func (c *collection[V]) see(doc store.Doc) (old *V, err error) {
	if doc.Body == nil {
		return c.forget(doc.Key), nil
	}
	value, err := c.decode(doc)
	if err != nil {
		return nil, fmt.Errorf("%s /%s/%s, revision %d: %w", c.noun, doc.Namespace, doc.Name,
			doc.Revision, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := slot[V]{value, doc.Revision}
	if c.of == nil {
		c.of = map[string]map[string]slot[V]{}
	}
	if c.of[doc.Namespace] == nil {
		c.of[doc.Namespace] = map[string]slot[V]{}
	}
	c.of[doc.Namespace][doc.Name] = now
	if was, replaced := c.docs.Swap(doc.Key, now); replaced {
		return was.(slot[V]).value, nil
	}
	return nil, nil
}

func (c *collection[V]) forget(key store.Key) (old *V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.of[key.Namespace], key.Name); len(c.of[key.Namespace]) == 0 {
		delete(c.of, key.Namespace)
	}
	if gone, was := c.docs.LoadAndDelete(key); was {
		return gone.(slot[V]).value
	}
	return nil
}

// get returns nil where there is none.
func (c *collection[V]) get(namespace, name string) (*V, uint64) {
	if found, is := c.docs.Load(c.key(namespace, name)); is {
		s := found.(slot[V])
		return s.value, s.revision
	}
	return nil, 0
}

// find is get with an error that names the missing entity.
func (c *collection[V]) find(namespace, name string) (*V, error) {
	if value, _ := c.get(namespace, name); value != nil {
		return value, nil
	}
	return nil, notFound("there is no %s /%s/%s", c.noun, namespace, name)
}

// list returns the entities in a namespace whose names begin with prefix, the latest change first.
func (c *collection[V]) list(namespace, prefix string) []*V {
	type row struct {
		slot[V]
		name string
	}
	var rows []row
	c.mu.RLock()
	for name, found := range c.of[namespace] {
		if strings.HasPrefix(name, prefix) {
			rows = append(rows, row{found, name})
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.revision, a.revision), cmp.Compare(a.name, b.name))
	})
	list := make([]*V, len(rows))
	for i := range rows {
		list[i] = rows[i].value
	}
	return list
}

// attempts bounds how often a change is made anew because another came first.
const attempts = 16

// change puts what next makes of the current value, which is nil where there is none.
func change[V, E any](
	ctx context.Context, c *catalog, in *collection[V], path entity.Path,
	next func(old *V) (made *E, code []byte, err error),
) (*V, error) {
	namespace, name := path.Namespace, path.Local()
	for range attempts {
		old, revision := in.get(namespace, name)
		made, code, err := next(old)
		if err != nil {
			return nil, err
		}
		doc := store.Doc{Key: in.key(namespace, name), Revision: revision}
		if doc.Body, err = json.Marshal(made); err != nil {
			return nil, err
		}
		doc.Revision, err = c.entities.Put(ctx, doc, code, c.most(namespace))
		if err == nil {
			return in.decode(doc)
		}
		var full *store.Full
		if errors.As(err, &full) {
			return nil, &overfull{full}
		}
		if !errors.Is(err, store.ErrConflict) {
			return nil, fmt.Errorf("the %s could not be kept: %w", in.noun, err)
		}
	}
	return nil, conflict("the %s %q is changed by too many at once; try again", in.noun, name)
}

// remove deletes what check agrees to.
func remove[V any](
	ctx context.Context, c *catalog, in *collection[V], path entity.Path, check func(*V) error,
) (*V, error) {
	namespace, name := path.Namespace, path.Local()
	for range attempts {
		old, revision := in.get(namespace, name)
		if old == nil {
			return nil, notFound("there is no %s /%s/%s", in.noun, namespace, name)
		}
		if err := check(old); err != nil {
			return nil, err
		}
		err := c.entities.Delete(ctx, in.key(namespace, name), revision)
		if err == nil {
			return old, nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return nil, fmt.Errorf("the %s could not be deleted: %w", in.noun, err)
		}
	}
	return nil, conflict("the %s %q is changed by too many at once; try again", in.noun, name)
}

// An overfull error is a 413, and says what its reader can do.
type overfull struct{ *store.Full }

func (o *overfull) Error() string {
	flag := map[string]string{
		store.ManyEntities: "max-entities", store.LargeEntities: "max-entity-mb",
		store.MuchCode: "max-code-mb",
	}[o.What]
	return fmt.Sprintf("too large: %v; delete some, or have the operator raise --%s", o.Full, flag)
}

func conflict(format string, args ...any) error {
	return fail(http.StatusConflict, format, args...)
}
