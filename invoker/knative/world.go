package knative

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	bytes    int           // of the JSON in events
	floor    uint64        // events of later revisions are all in events
	revision uint64        // of the last change
	changed  chan struct{} // is closed by the next event
	follow   []func(*event)
}

// So much of the log is kept, and at most twice as much: it bounds what a watcher may be behind.
const (
	mostEvents = 1 << 14
	mostBytes  = 16 << 20 // of their objects' JSON; an object takes several times as much memory
)

// began is a document that each process puts when it begins. So its revision is later than those
// of all earlier events, of which the process knows none.
var began = store.Key{Kind: "began." + store.Kind(group.Group), Namespace: "_", Name: "began"}

func openWorld(ctx context.Context, s store.Store, log *slog.Logger,
	follow ...func(*event)) (*world, error) {
	w := &world{store: s, log: log, objects: map[*kind]map[string]map[string]*entry{},
		changed: make(chan struct{}), follow: follow}
	for _, k := range kinds {
		w.objects[k] = map[string]map[string]*entry{}
	}
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
	w.floor, w.events, w.bytes = w.revision, nil, 0
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
	w.events, w.bytes = append(w.events, ev), w.bytes+len(e.body)
	if len(w.events) > 2*mostEvents || w.bytes > 2*mostBytes {
		w.trim()
	}
	for _, follow := range w.follow {
		follow(ev)
	}
	close(w.changed)
	w.changed = make(chan struct{})
	return nil
}

// trim forgets the oldest events.
func (w *world) trim() {
	from := 0
	for ; len(w.events)-from > mostEvents || w.bytes > mostBytes; from++ {
		w.bytes -= len(w.events[from].entry.body)
		w.floor = w.events[from].revision
	}
	w.events = append([]*event(nil), w.events[from:]...)
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

// since returns the events after a revision, and what is closed when there are more.
func (w *world) since(revision uint64) ([]*event, <-chan struct{}, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if revision < w.floor {
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
	if events, _, err := w.since(revision - 1); err == nil && len(events) > 0 &&
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
