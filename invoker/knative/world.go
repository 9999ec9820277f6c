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
	"knative.dev/serving/pkg/apis/serving"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
)

// A name names an object of a kind.
type name struct{ namespace, name string }

// An entry is an object at one revision. Nothing in it changes.
type entry struct {
	*encoded
	object object // nil: of former times, and nobody has asked for it
}

// An encoded object is what all get who ask for it, and what the log keeps of it: the object itself
// takes several times as much.
type encoded struct {
	kind     *kind
	name     name
	revision uint64
	labels   map[string]string // the object's
	body     []byte            // JSON
}

// itself returns the object.
func (e *entry) itself() object {
	if e.object == nil {
		return e.encoded.itself()
	}
	return e.object
}

func (e *encoded) itself() object { return e.decoded().object }

// An event is a change of the world.
type event struct {
	what   string // ADDED, MODIFIED or DELETED
	entry  *entry // of a deletion: what was deleted, with the revision of the deletion
	before *entry // nil: it was not there
	noted  bool   // by the reconcilers, about it
}

// A logged event is what watchers read of one. All of them share it.
type logged struct {
	what string
	*encoded
	before *encoded // nil: it was not there
}

// A ref names an object.
type ref struct {
	kind *kind
	name name
}

// A world holds every object and the events that led to it, the newest most of them. The store is
// behind it: what users say is durable before it is seen here, and how it is with an object, which
// can be found out again, is written later.
type world struct {
	store store.Store
	log   *slog.Logger

	mu       sync.RWMutex
	objects  map[*kind]map[string]map[string]*entry // by kind, namespace and name
	events   []*logged
	weight   int
	weights  map[string]int    // of the events, by namespace
	floors   map[string]uint64 // by namespace: events of later revisions are all in events
	floor    uint64            // the same for all namespaces
	revision uint64            // of the last change
	changed  chan struct{}     // is closed by the next event
	follow   []func(*event)
	purged   func(namespace string) // of whom nothing may be seen any more
	opened   bool
	early    []store.Doc // what came before that

	unread map[ref]bool // there is a document that cannot be used

	kept  map[ref]uint64 // the store's revision of each object's document
	later map[ref]bool   // those whose document is older than they are
	busy  map[ref]*write // those whose document is being written
	wake  chan struct{}  // of one: there is something to write later
	over  chan struct{}  // is closed when nothing will be
	wrote sync.WaitGroup
}

// A write of a document is made by a change that waits for it, or by the world itself, behind what
// is seen.
type write struct {
	behind bool
	object object        // as it will be seen; nil: it is decoded then
	over   chan struct{} // is closed when the write has ended
}

// So many bytes of the log are kept, and at most twice as many: they bound what a watcher may be
// behind.
const (
	mostWeight = 8 << 20
	lightest   = 1 << 8 // an event without JSON
)

// weight returns at most how many bytes a logged event takes: its JSON may be another's, too.
func (l *logged) weight() int {
	if l.before == nil {
		return lightest + len(l.body)
	}
	return lightest + len(l.body) + len(l.before.body)
}

// So many events, and no more after so many bytes, are handed to a watcher at once: one that reads
// none of them keeps no more.
const mostAtOnce, weightAtOnce = 256, 1 << 20

// began is a document that each process puts when it begins. So its revision is later than those
// of all earlier events, of which the process knows none.
var began = store.Key{Kind: "began." + serving.GroupName, Namespace: "_", Name: "began"}

// A process counts its changes from the revision of began, times this: so it gives no resource
// version that a former process has given. A former one has put more than one document in so many
// changes.
const changesOf = 1 << 20

func newWorld() *world {
	w := &world{objects: map[*kind]map[string]map[string]*entry{}, weights: map[string]int{},
		floors: map[string]uint64{}, changed: make(chan struct{}),
		unread: map[ref]bool{}, kept: map[ref]uint64{}, later: map[ref]bool{},
		busy: map[ref]*write{}, wake: make(chan struct{}, 1),
		over: make(chan struct{})}
	for _, k := range kinds {
		w.objects[k] = map[string]map[string]*entry{}
	}
	return w
}

func openWorld(ctx context.Context, s store.Store, log *slog.Logger, purged func(string),
	follow ...func(*event)) (*world, error) {
	w := newWorld()
	w.store, w.log, w.follow, w.purged = s, log, follow, purged
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
	w.opened, w.revision = true, last*changesOf
	for _, doc := range w.early {
		o, err := read(doc)
		if err == nil {
			err = w.take(doc, o, w.revision)
		}
		if err != nil {
			log.Error("a document of the store cannot be used", "err", err)
			w.unread[ref{ofStore(string(doc.Kind)), name{doc.Namespace, doc.Name}}] = true
		}
	}
	w.early = nil
	w.floor, w.events, w.weight = w.revision, nil, 0
	clear(w.weights)
	clear(w.floors)
	w.wrote.Go(w.writeLater)
	return w, nil
}

// see takes in a document of the store.
func (w *world) see(doc store.Doc) error {
	if _, is := access.Purged(doc); is || doc.Kind == store.Claims && doc.Body == nil {
		w.purged(doc.Name)
	}
	k := ofStore(string(doc.Kind))
	if k == nil {
		return nil
	}
	at := ref{k, name{doc.Namespace, doc.Name}}
	w.mu.Lock()
	opened, under := w.opened, w.busy[at]
	if !opened {
		w.early = append(w.early, doc)
	}
	w.mu.Unlock()
	var o object
	switch {
	case !opened, doc.Body != nil && under != nil && under.behind: // it is seen already
		return nil
	case doc.Body != nil && under != nil:
		o = under.object
	}
	if o == nil {
		var err error
		if o, err = read(doc); err != nil { // which takes its time, and nobody's
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.take(doc, o, w.revision+1)
}

// read returns the object of a document; nil: it is deleted.
func read(doc store.Doc) (object, error) {
	if doc.Body == nil {
		return nil, nil
	}
	k := ofStore(string(doc.Kind))
	o := k.make()
	if err := json.Unmarshal(doc.Body, o); err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", k.Names.Plural, doc.Namespace, doc.Name, err)
	}
	return o, nil
}

// take takes in a document and its object, under that resource version. The caller holds the lock.
func (w *world) take(doc store.Doc, o object, revision uint64) error {
	k := ofStore(string(doc.Kind))
	at := ref{k, name{doc.Namespace, doc.Name}}
	before := w.find(k, at.name)
	delete(w.unread, at)
	if o == nil {
		delete(w.kept, at)
		delete(w.later, at)
		if before != nil {
			w.happen(before.deleted(revision))
		}
		return nil
	}
	w.kept[at] = doc.Revision
	e, err := entryOf(k, o, revision, doc.Body)
	if err == nil {
		w.happen(e.after(before))
	}
	return err
}

// after returns the event that an object is in the place of another; nil: of none.
func (e *entry) after(before *entry) *event {
	if before == nil {
		return &event{what: "ADDED", entry: e}
	}
	return &event{what: "MODIFIED", entry: e, before: before}
}

// deleted returns the event that an object is gone.
func (e *entry) deleted(revision uint64) *event {
	o := e.object.DeepCopyObject().(object)
	now, err := entryOf(e.kind, o, revision, e.document())
	if err != nil {
		panic(err) // it was encoded before
	}
	return &event{what: "DELETED", entry: now, before: e}
}

// happen has an event seen by everybody. The caller holds the lock.
func (w *world) happen(ev *event) {
	e := ev.entry
	w.revision = e.revision
	all := w.objects[e.kind]
	if all[e.name.namespace] == nil {
		all[e.name.namespace] = map[string]*entry{}
	}
	all[e.name.namespace][e.name.name] = e
	if ev.what == "DELETED" {
		delete(all[e.name.namespace], e.name.name)
	}
	l := &logged{what: ev.what, encoded: e.encoded}
	if ev.before != nil {
		l.before = ev.before.encoded
	}
	w.events = append(w.events, l)
	w.weights[e.name.namespace] += l.weight()
	if w.weight += l.weight(); w.weight > 2*mostWeight {
		w.trim()
	}
	for _, follow := range w.follow {
		follow(ev)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// trim forgets the oldest events, of the namespaces alone that have more than their part.
func (w *world) trim() {
	most := fairly(w.weights, mostWeight)
	var events []*logged
	for _, e := range w.events {
		if of := e.name.namespace; w.weights[of] > most {
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

// The JSON of an object begins so, and that of a document has its revision there.
var head = []byte(`"metadata":{`)

// entryOf returns the entry of an object at a revision, and of its JSON, which has none yet: so it
// is written once.
func entryOf(k *kind, o object, revision uint64, body []byte) (*entry, error) {
	e := &entry{&encoded{kind: k, name: name{o.GetNamespace(), o.GetName()}, revision: revision,
		labels: o.GetLabels()}, o}
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	before, after, found := bytes.Cut(body, head)
	if !found {
		return e, e.encode()
	}
	version := `"resourceVersion":"` + o.GetResourceVersion() + `",`
	e.body = slices.Concat(before, head, []byte(version), after)
	return e, nil
}

// decoded returns the entry of what is encoded, for those who look into the object.
func (e *encoded) decoded() *entry {
	o := e.kind.make()
	if err := json.Unmarshal(e.body, o); err != nil {
		panic(err) // it is our own
	}
	return &entry{e, o}
}

// document returns the entry's JSON without its revision.
func (e *encoded) document() []byte { return slices.Concat(e.around()) }

// around returns the entry's JSON before and after its revision.
func (e *encoded) around() (before, after []byte) {
	at := bytes.Index(e.body, head) + len(head)
	_, after, _ = bytes.Cut(e.body[at:], []byte(","))
	return e.body[:at], after
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

// unusable reports whether an object may be there of which only a document is that cannot be used.
func (w *world) unusable(at ref) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.unread[at]
}

// reached returns the revision of the last change.
func (w *world) reached() uint64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.revision
}

// list returns the objects of a namespace, by name, and the revision at which they are these.
func (w *world) list(k *kind, namespace string) (all []*entry, revision uint64) {
	w.mu.RLock()
	for _, e := range w.objects[k][namespace] {
		all = append(all, e)
	}
	revision = w.revision
	w.mu.RUnlock()
	byName(all)
	return all, revision
}

func byName(all []*entry) {
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.name.name, b.name.name) })
}

// listOf returns the objects of a namespace as they were at a revision, by name: what each event
// since then has changed is taken back.
func (w *world) listOf(k *kind, namespace string, revision uint64) (all []*entry, err error) {
	w.mu.RLock()
	if !w.reaches(revision, namespace) {
		w.mu.RUnlock()
		return nil, errExpired
	}
	then := maps.Clone(w.objects[k][namespace])
	for _, e := range slices.Backward(w.events) {
		if e.revision <= revision {
			break
		}
		switch {
		case e.kind != k || e.name.namespace != namespace:
		case e.before == nil:
			delete(then, e.name.name)
		default:
			then[e.name.name] = &entry{encoded: e.before}
		}
	}
	w.mu.RUnlock()
	all = slices.Collect(maps.Values(then))
	byName(all)
	return all, nil
}

// reaches reports whether the log has all events of a namespace since a revision. The caller holds
// the lock.
func (w *world) reaches(revision uint64, namespace string) bool {
	return revision >= max(w.floor, w.floors[namespace]) && revision <= w.revision
}

// show has an object that no store has seen by all, in the place of what it was.
func (w *world) show(k *kind, o object) (*entry, error) {
	body, err := document(k, o)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e, err := entryOf(k, o, w.revision+1, body)
	if err == nil {
		w.happen(e.after(w.find(k, e.name)))
	}
	return e, err
}

// hide takes back what show has shown.
func (w *world) hide(shown *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.find(shown.kind, shown.name); now != nil {
		w.happen(now.deleted(w.revision + 1))
	}
}

// errExpired answers who asks for events that are not kept any more, or after a revision that this
// world has not reached: another gave that one, such as the one before the store was restored.
var errExpired = apierrors.NewResourceExpired(
	"too old resource version: list the objects again, and watch from there")

// closed says that there are more events already.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// since returns the first events after a revision, all of the namespace among them, and what is
// closed when there are more.
func (w *world) since(revision uint64, namespace string) ([]*logged, <-chan struct{}, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.reaches(revision, namespace) {
		return nil, nil, errExpired
	}
	at, _ := slices.BinarySearchFunc(w.events, revision+1,
		func(e *logged, r uint64) int { return int(int64(e.revision - r)) })
	left, n, weight := w.events[at:], 0, 0
	for n < min(len(left), mostAtOnce) && weight < weightAtOnce {
		weight += left[n].weight()
		n++
	}
	if n < len(left) {
		return slices.Clone(left[:n]), closed, nil
	}
	return slices.Clone(left), w.changed, nil
}

// put keeps an object, whose JSON is body, in the place of old; nil: it is new. It is durable then,
// and returned as it is seen.
func (w *world) put(ctx context.Context, k *kind, o object, body []byte, old *entry,
	most store.Space) (*entry, error) {
	at := ref{k, name{o.GetNamespace(), o.GetName()}}
	doc := store.Doc{Key: at.key(), Body: body}
	seen, err := read(doc) // others put theirs meanwhile, which they do not while the store tells
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	defer w.hold(at, write{object: seen})()
	now, kept := w.now(at)
	doc.Revision = kept
	if old == nil {
		doc.Revision = 0
	} else if now == nil || now.revision != old.revision {
		return nil, conflict(k, o.GetName())
	}
	_, err = w.store.Put(context.WithoutCancel(ctx), doc, nil, most) // else it may be done later
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
	if now, _ = w.now(at); now == nil { // it is gone again
		return nil, apierrors.NewNotFound(k.resource(), o.GetName())
	}
	return now, nil
}

// document returns the JSON of an object without its revision.
func document(k *kind, o object) ([]byte, error) {
	o.SetResourceVersion("")
	o.GetObjectKind().SetGroupVersionKind(k.gvk())
	return json.Marshal(o)
}

// now returns an object as it is, and the store's revision of its document.
func (w *world) now(at ref) (e *entry, kept uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.find(at.kind, at.name), w.kept[at]
}

func (at ref) key() store.Key { return storeKey(at.kind, at.name.namespace, at.name.name) }

func storeKey(k *kind, namespace, of string) store.Key {
	return store.Key{Kind: store.Kind(k.stored()), Namespace: namespace, Name: of}
}

func conflict(k *kind, of string) error {
	return apierrors.NewConflict(k.resource(), of, errors.New("the object has been modified; "+
		"please apply your changes to the latest version and try again"))
}

// remove deletes an object of that revision.
func (w *world) remove(ctx context.Context, e *entry) error {
	at := ref{e.kind, e.name}
	defer w.hold(at, write{})()
	now, kept := w.now(at)
	if now != nil && now.revision != e.revision {
		return conflict(e.kind, e.name.name)
	}
	err := w.store.Delete(context.WithoutCancel(ctx), at.key(), kept)
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
