// Package store says what an invoker must not forget: entities, activation records, and what it accepted and has not finished.
//
// Two stores keep it: embedded (one file, nothing to start) and redis (for more than one invoker). storetest is the suite both pass.
// Reading an entity never asks the store: the invoker watches, and keeps what it saw decoded in memory.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is a collection of documents.
type Kind string

const (
	Actions  Kind = "actions"
	Packages Kind = "packages"
	Triggers Kind = "triggers"
	Rules    Kind = "rules"
	Subjects Kind = "subjects"
	Claims   Kind = "claims" // whose a namespace is
)

// A Key names a document. The name of an action in a package is "package/action".
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// A Doc is an entity as it is kept: JSON that the store does not look into. Its revision is the store's to give, and grows with every change.
type Doc struct {
	Key
	Revision uint64
	Body     []byte // nil in a Watch: the document was deleted
}

// ErrConflict is the answer to a change of a document that has another revision by now, or exists when it should be new.
var ErrConflict = errors.New("changed by somebody else meanwhile")

// ErrNotFound is the answer to a question for what is not there.
var ErrNotFound = errors.New("not found")

// ErrReplaced is the answer to a process whose invoker's name another process has taken.
var ErrReplaced = errors.New("another process has taken this invoker's name")

// ErrNotKept is in an error where it is sure that nothing was changed.
var ErrNotKept = errors.New("nothing was kept")

// NotKept is err, with ErrNotKept in it.
func NotKept(err error) error { return notKept{err} }

type notKept struct{ error }

func (e notKept) Unwrap() []error { return []error{e.error, ErrNotKept} }

// Entities are the documents.
type Entities interface {
	// Watch calls see with every document there is and returns; from then on with every change, one after another in the order of
	// each key's revisions, whoever made it, until ctx ends. The changes made through this Entities are seen before their call returns.
	// A change that could not be followed, because the connection was gone for long, may be skipped for the ones after it. see must
	// be quick and must not ask the store.
	Watch(ctx context.Context, see func(Doc)) error
	// Put keeps a document durably and returns its new revision. doc.Revision is the one it replaces, 0 where it must be new.
	// code, what an action's source is, is kept beside the body and out of memory; nil leaves it as it was, empty drops it.
	// It is a *Full, and nothing changes, where the namespace would then take more than most, and more than before.
	Put(ctx context.Context, doc Doc, code []byte, most Space) (revision uint64, err error)
	// Delete removes a document of that revision, and its code. Who watches sees it without a body, under a new revision.
	Delete(ctx context.Context, key Key, revision uint64) error
	// Code is what was put with the document; ErrNotFound where there is none.
	Code(ctx context.Context, key Key) ([]byte, error)
	// Used is what the documents of a namespace take. It is kept as they change, not counted when asked.
	Used(ctx context.Context, namespace string) (Space, error)
}

// An Accepted activation was promised to a caller who does not wait for it.
type Accepted struct {
	ID        string
	Invoker   string // whose it is to finish
	Namespace string // whose call it is
	At        time.Time
	Sent      bool   // its /run may have been sent: it must never be run again
	Body      []byte // what is needed to run it, as the invoker wrote it
}

// Activations are what was promised and what came of it.
type Activations interface {
	// Take makes this process the only one of the invoker's name, until Close. One that had it before is
	// refused its promises from then on: ErrReplaced.
	Take(ctx context.Context, invoker string) error
	// Adopt returns promises of invokers that are no more, which are those of this one's name from then on.
	Adopt(ctx context.Context) ([]Accepted, error)
	// Accept returns when the promise is durable; promises made at the same time share an fsync. It is ErrConflict to promise an id
	// twice, and nothing to do where the record is there already.
	Accept(ctx context.Context, a Accepted) error
	// Sent returns when it is durable that the activation's /run may have been sent; ErrNotFound where it is
	// not promised, ErrConflict where it was sent already: then another process runs it.
	Sent(ctx context.Context, id string) error
	// Finish keeps the record and drops the promise, both or neither. It does not wait: the record is found by Get and List at once and
	// is durable within Window. It waits only while more records are on their way to the disk than memory should hold. The first
	// record of an id counts.
	Finish(r *Record)
	// Refuse is Finish that returns when the record is durable. From then on there is no such promise,
	// also where an Accept of it is still on its way. It is ErrConflict, and nothing changes, where
	// another process has sent it.
	Refuse(ctx context.Context, r *Record) error
	// Unfinished returns the promises that no record has answered and that the invoker is to finish, oldest
	// first: those of its name, or all of them in a store that only one invoker can open.
	Unfinished(ctx context.Context, invoker string) ([]Accepted, error)
	// Get returns the body of a record.
	Get(ctx context.Context, namespace, id string) ([]byte, error)
	// List shows the bodies of the records that the filter takes, newest first, without the first skip,
	// at most limit, until see has an error, which it returns; Count counts them all. It has few in
	// memory at once, and holds up nobody while see takes its time.
	List(ctx context.Context, f Filter, skip, limit int, see func(body []byte) error) error
	Count(ctx context.Context, f Filter) (int, error)
	// Forget drops records and promises of a namespace, a portion of them that takes about a second at
	// most, and returns how many it met; 0: none is left.
	Forget(ctx context.Context, namespace string) (int, error)
}

// Portion is about how many bytes of records a list has in memory at once.
const Portion = 1 << 20

// Window is how long a record that nobody was promised may take to be durable: what a crash can lose.
const Window = 50 * time.Millisecond

// A Store is both. Of the records it keeps as many as it has room for; then a namespace that holds
// more than the average loses its oldest. A change whose call failed, or was given up by its ctx, may have been made all the same.
type Store interface {
	Entities
	Activations
	// Broken is why the store keeps nothing at the moment, as far as it knows; nil: it does.
	Broken() error
	// Lost counts the records that could be kept neither on disk, because it was full or out of reach, nor in memory.
	Lost() uint64
	// Close makes durable what is on its way.
	Close() error
}

// ErrClosed is the answer of a store that was closed.
var ErrClosed = errors.New("the store is closed")

// Check refuses what no store can keep.
func (d Doc) Check() error {
	if d.Body == nil {
		return fmt.Errorf("%s %s/%s has no body", d.Kind, d.Namespace, d.Name)
	}
	return CheckNames(string(d.Kind), d.Namespace, d.Name)
}

// CheckNames refuses names that cannot be part of a store's keys.
func CheckNames(names ...string) error {
	const most = 4 << 10
	for _, name := range names {
		if name == "" || len(name) > most || strings.ContainsRune(name, 0) {
			return fmt.Errorf("the name %.40q cannot be kept: it is empty, longer than %d bytes, or contains a zero byte", name, most)
		}
	}
	return nil
}
