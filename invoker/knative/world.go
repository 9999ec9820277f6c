package knative

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fastiov/fastiov/invoker/store"
)

// A name names an object of a kind.
type name struct{ namespace, name string }

// An entry is an object at one revision. Nothing in it changes.
type entry struct {
	kind     *kind
	name     name
	object   object
	revision uint64
	body     []byte // its JSON, as all who ask for it get it
}

// An event is a change of the world. All watchers share it.
type event struct {
	what     string // ADDED, MODIFIED or DELETED
	revision uint64
	entry    *entry // of a deletion: what was deleted, with the revision of the deletion
	before   *entry // nil: it was not there
}

// A world holds every object and the events that led to it, the newest most of them. The store is
// behind it: what happens is durable before it is seen here.
type world struct {
	store store.Store
	log   *slog.Logger

	mu       sync.RWMutex
	objects  map[*kind]map[string]map[string]*entry // by kind, namespace and name
	events   []*event
	weight   int
	weights  map[string]int    // of the events, by namespace
	floors   map[string]uint64 // by namespace: events of later revisions are all in events
	floor    uint64            // the same for all namespaces
	revision uint64            // of the last change
	changed  chan struct{}     // is closed by the next event
	follow   []func(*event)
}

// So much of the log is kept, and at most twice as much: it bounds what a watcher may be behind.
const (
	mostWeight = 16 << 20
	lightest   = 1 << 10 // weight of an event beside its object's JSON, whose object takes more
)

func (e *event) weight() int { return lightest + len(e.entry.body) }

// began is a document that each process puts when it begins. So its revision is later than those
// of all earlier events, of which the process knows none.
var began = store.Key{Kind: "began." + store.Kind(group.Group), Namespace: "_", Name: "began"}

func newWorld() *world {
	w := &world{objects: map[*kind]map[string]map[string]*entry{}, weights: map[string]int{},
		floors: map[string]uint64{}, changed: make(chan struct{})}
	for _, k := range kinds {
		w.objects[k] = map[string]map[string]*entry{}
	}
	return w
}

func openWorld(ctx context.Context, s store.Store, log *slog.Logger,
	follow ...func(*event)) (*world, error) {
	w := newWorld()
	w.store, w.log, w.follow = s, log, follow
	var last uint64
	err := s.Watch(ctx, func(doc store.Doc) {
		if doc.Key == began {
			last = doc.Revision
		} else if err := w.see(doc); err != nil {
			log.Error("a document of the store cannot be used", "err", err)
		}
	})
	if err != nil {
		return nil, err
	}
	for err = store.ErrConflict; errors.Is(err, store.ErrConflict); {
		_, err = s.Put(ctx, store.Doc{Key: began, Revision: last, Body: []byte("{}")}, nil,
			store.Unbounded)
	}
	if err != nil {
		return nil, fmt.Errorf("the store of services: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision = max(w.revision, last)
	w.floor, w.events, w.weight = w.revision, nil, 0
	clear(w.weights)
	clear(w.floors)
	return w, nil
}

// see takes in a document. Revisions come in their order.
func (w *world) see(doc store.Doc) error {
	k := ofStore(string(doc.Kind))
	if k == nil {
		return nil
	}
	e := &entry{kind: k, name: name{doc.Namespace, doc.Name}, revision: doc.Revision}
	w.mu.Lock()
	defer w.mu.Unlock()
	ev := &event{revision: doc.Revision, entry: e, before: w.find(k, e.name)}
	switch {
	case doc.Body != nil:
		ev.what = "MODIFIED"
		if ev.before == nil {
			ev.what = "ADDED"
		}
		if err := e.read(doc.Body); err != nil {
			return err
		}
		all := w.objects[k]
		if all[doc.Namespace] == nil {
			all[doc.Namespace] = map[string]*entry{}
		}
		all[doc.Namespace][doc.Name] = e
	case ev.before == nil:
		return nil
	default:
		ev.what = "DELETED"
		e.object = ev.before.object.DeepCopyObject().(object)
		if err := e.encode(); err != nil {
			return err
		}
		delete(w.objects[k][doc.Namespace], doc.Name)
	}
	w.revision = doc.Revision
	w.events = append(w.events, ev)
	w.weights[doc.Namespace] += ev.weight()
	if w.weight += ev.weight(); w.weight > 2*mostWeight {
		w.trim()
	}
	for _, follow := range w.follow {
		follow(ev)
	}
	close(w.changed)
	w.changed = make(chan struct{})
	return nil
}

// trim forgets the oldest events, of the namespaces alone that have more than their part.
func (w *world) trim() {
	most := fairly(w.weights, mostWeight)
	var events []*event
	for _, e := range w.events {
		if of := e.entry.name.namespace; w.weights[of] > most {
			w.weights[of] -= e.weight()
			w.weight -= e.weight()
			w.floors[of] = e.revision
		} else {
			events = append(events, e)
		}
	}
	w.events = events
}

// fairly returns the most that each may have, if all together may have the whole.
func fairly(weights map[string]int, whole int) int {
	for n, weight := range slices.Sorted(maps.Values(weights)) {
		if each := whole / (len(weights) - n); weight > each {
			return each
		}
		whole -= weight
	}
	return whole
}

// read makes the entry of a document. The document has all but the revision, which the store gives;
// so the JSON is written once, and the revision put into it.
func (e *entry) read(body []byte) error {
	const head = `"metadata":{`
	e.object = e.kind.make()
	if err := json.Unmarshal(body, e.object); err != nil {
		return fmt.Errorf("%s %s/%s: %w", e.kind.Names.Plural, e.name.namespace, e.name.name, err)
	}
	e.object.SetResourceVersion(strconv.FormatUint(e.revision, 10))
	before, after, found := bytes.Cut(body, []byte(head))
	if !found {
		return e.encode()
	}
	e.body = fmt.Appendf(nil, `%s%s"resourceVersion":"%d",%s`, before, head, e.revision, after)
	return nil
}

func (e *entry) encode() (err error) {
	e.object.SetResourceVersion(strconv.FormatUint(e.revision, 10))
	e.body, err = json.Marshal(e.object)
	return err
}

func (w *world) find(k *kind, n name) *entry { return w.objects[k][n.namespace][n.name] }

// get returns an object, or nil.
func (w *world) get(k *kind, namespace, of string) *entry {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.find(k, name{namespace, of})
}

// list returns the objects of a namespace, by name, and the revision at which they are these.
func (w *world) list(k *kind, namespace string) (all []*entry, revision uint64) {
	w.mu.RLock()
	for _, e := range w.objects[k][namespace] {
		all = append(all, e)
	}
	revision = w.revision
	w.mu.RUnlock()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.name.name, b.name.name) })
	return all, revision
}

// errExpired answers who asks for events that are not kept any more.
var errExpired = apierrors.NewResourceExpired(
	"too old resource version: list the objects again, and watch from there")

// since returns the events after a revision, all of the namespace among them, and what is closed
// when there are more.
func (w *world) since(revision uint64, namespace string) ([]*event, <-chan struct{}, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if revision < max(w.floor, w.floors[namespace]) {
		return nil, nil, errExpired
	}
	at, _ := slices.BinarySearchFunc(w.events, revision+1,
		func(e *event, r uint64) int { return int(int64(e.revision - r)) })
	return w.events[at:len(w.events):len(w.events)], w.changed, nil
}

// put keeps an object in the place of old; nil: it is new. It returns what is then seen.
func (w *world) put(ctx context.Context, k *kind, o object, old *entry,
	most store.Space) (*entry, error) {
	o.SetResourceVersion("")
	o.GetObjectKind().SetGroupVersionKind(k.gvk())
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	doc := store.Doc{Key: storeKey(k, o.GetNamespace(), o.GetName()), Body: body}
	if old != nil {
		doc.Revision = old.revision
	}
	revision, err := w.store.Put(ctx, doc, nil, most)
	var full *store.Full
	switch {
	case errors.Is(err, store.ErrConflict) && old == nil:
		return nil, apierrors.NewAlreadyExists(k.resource(), o.GetName())
	case errors.Is(err, store.ErrConflict):
		return nil, conflict(k, o.GetName())
	case errors.As(err, &full):
		return nil, apierrors.NewForbidden(k.resource(), o.GetName(), full)
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	if events, _, err := w.since(revision-1, o.GetNamespace()); err == nil && len(events) > 0 &&
		events[0].revision == revision {
		return events[0].entry, nil
	}
	e := &entry{kind: k, name: name{o.GetNamespace(), o.GetName()}, revision: revision}
	return e, e.read(body)
}

func storeKey(k *kind, namespace, of string) store.Key {
	return store.Key{Kind: store.Kind(k.stored()), Namespace: namespace, Name: of}
}

func conflict(k *kind, of string) error {
	return apierrors.NewConflict(k.resource(), of, errors.New("the object has been modified; "+
		"please apply your changes to the latest version and try again"))
}

// remove deletes an object of that revision.
func (w *world) remove(ctx context.Context, e *entry) error {
	err := w.store.Delete(ctx, storeKey(e.kind, e.name.namespace, e.name.name), e.revision)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(e.kind.resource(), e.name.name)
	case errors.Is(err, store.ErrConflict):
		return conflict(e.kind, e.name.name)
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return nil
}
