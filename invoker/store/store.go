// Package store declares what an invoker must not forget: entities, activation records, and the
// calls that it accepted and has not finished.
//
// There are two stores: embedded (one file, nothing to start) and redis (for more than one
// invoker). The suite in storetest tests both. Reading an entity never asks the store: the invoker
// watches the store and keeps every entity decoded in memory.
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
	Claims   Kind = "claims" // who owns a namespace
)

// A Key names a document. The name of an action in a package is "package/action".
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// A Doc is an entity as the store keeps it: JSON that the store does not look into. The store gives
// each Doc its revision, which grows with every change.
type Doc struct {
	Key
	Revision uint64
	Body     []byte // nil in a Watch: the document was deleted
}

// ErrConflict answers a change of a document that meanwhile has another revision, or that exists
// already although it should be new.
var ErrConflict = errors.New("changed by somebody else meanwhile")

// ErrNotFound answers a request for something that does not exist.
var ErrNotFound = errors.New("not found")

// ErrReplaced answers a process after another process has taken its invoker's name.
var ErrReplaced = errors.New("another process has taken this invoker's name")

// ErrNotKept is wrapped in an error if it is certain that nothing was changed.
var ErrNotKept = errors.New("nothing was kept")

// NotKept returns err with ErrNotKept in it.
func NotKept(err error) error { return notKept{err} }

type notKept struct{ error }

func (e notKept) Unwrap() []error { return []error{e.error, ErrNotKept} }

// Entities keeps the documents.
type Entities interface {
	// Watch calls see with every document and returns. From then on it calls see with every change,
	// by whichever invoker, one call at a time and in the order of each key's revisions, until ctx
	// ends. A change that is made through this Entities is seen before its call returns. If the
	// connection was gone for long, changes may be skipped in favour of later ones. see must be
	// quick and must not ask the store.
	Watch(ctx context.Context, see func(Doc)) error
	// Put keeps a document durably and returns its new revision. doc.Revision is the revision that
	// it replaces, 0 if the document must be new. code is an action's source. It is kept beside the
	// body and out of memory; nil leaves the old code, an empty code drops it. If the namespace
	// would then take more than most, and more than before, nothing changes and the error is a
	// *Full.
	Put(ctx context.Context, doc Doc, code []byte, most Space) (revision uint64, err error)
	// Delete removes a document of that revision and its code. Watchers see the document without a
	// body, under a new revision.
	Delete(ctx context.Context, key Key, revision uint64) error
	// Code returns the code that was put with the document, or ErrNotFound.
	Code(ctx context.Context, key Key) ([]byte, error)
	// Used returns what the documents of a namespace take. The sums are kept up to date with every
	// change, so nothing is counted here.
	Used(ctx context.Context, namespace string) (Space, error)
}

// An Accepted activation was promised to a caller that does not wait for it.
type Accepted struct {
	ID        string
	Invoker   string // the invoker that is to finish it
	Namespace string // the caller's namespace
	At        time.Time
	Sent      bool   // its /run may have been sent: it must never be run again
	Body      []byte // what the invoker needs to run it, in the invoker's own format
}

// Activations keeps promises and the records that answer them.
type Activations interface {
	// Take makes this process the only one with the invoker's name, until Close. A process that had
	// the name before gets ErrReplaced for its promises from then on.
	Take(ctx context.Context, invoker string) error
	// Adopt moves the promises of invokers that have ended to this invoker's name, and returns
	// them.
	Adopt(ctx context.Context) ([]Accepted, error)
	// Accept returns when the promise is durable; promises made at the same time share an fsync. An
	// id that was promised before returns ErrConflict. If the record exists already, Accept does
	// nothing.
	Accept(ctx context.Context, a Accepted) error
	// Sent returns when it is durable that the activation's /run may have been sent. It returns
	// ErrNotFound if the activation is not promised, and ErrConflict if it was sent already: then
	// another process runs it.
	Sent(ctx context.Context, id string) error
	// Finish keeps the record and drops the promise, both or neither. It does not wait: Get and
	// List find the record at once, and it is durable within Window. Finish waits only while memory
	// holds too many records that are not yet on disk. Of several records with one id, the first
	// one counts.
	Finish(r *Record)
	// Refuse is a Finish that returns when the record is durable. From then on the promise does not
	// exist, even if an Accept of it is still being written. If another process has sent the
	// activation, nothing changes and the error is ErrConflict.
	Refuse(ctx context.Context, r *Record) error
	// Unfinished returns the promises without a record that the invoker is to finish, oldest first:
	// those of its name, or all promises in a store that only one invoker can open.
	Unfinished(ctx context.Context, invoker string) ([]Accepted, error)
	// Get returns the body of a record.
	Get(ctx context.Context, namespace, id string) ([]byte, error)
	// List calls see with the bodies of the records that the filter takes, newest first, without
	// the first skip, at most limit. It returns the first error of see. It holds few records in
	// memory at once, and a slow see delays nobody else. Count counts all records that the filter
	// takes.
	List(ctx context.Context, f Filter, skip, limit int, see func(body []byte) error) error
	Count(ctx context.Context, f Filter) (int, error)
	// Forget drops some records and promises of a namespace, as many as take about a second, and
	// returns how many it met. It returns 0 when none is left.
	Forget(ctx context.Context, namespace string) (int, error)
}

// Portion is about how many bytes of records a list holds in memory at once.
const Portion = 1 << 20

// Window is the time within which a record without a promise becomes durable. A crash can lose the
// records of this time.
const Window = 50 * time.Millisecond

// A Store keeps entities and activations. It keeps as many records as it has room for; beyond that,
// a namespace that holds more than the average loses its oldest. A change whose call failed, or
// whose ctx ended, may have been made nevertheless.
type Store interface {
	Entities
	Activations
	// Broken returns why the store cannot keep anything at the moment, as far as it knows. It
	// returns nil if the store works.
	Broken() error
	// Lost counts the records that could be kept neither on disk, because it was full or out of
	// reach, nor in memory.
	Lost() uint64
	// Close makes durable all that is still being written.
	Close() error
}

// ErrClosed is the answer of a closed store.
var ErrClosed = errors.New("the store is closed")

// Check returns an error for a document that no store can keep.
func (d Doc) Check() error {
	if d.Body == nil {
		return fmt.Errorf("%s %s/%s has no body", d.Kind, d.Namespace, d.Name)
	}
	return CheckNames(string(d.Kind), d.Namespace, d.Name)
}

// CheckNames returns an error for names that cannot be part of a store's keys.
func CheckNames(names ...string) error {
	const most = 4 << 10
	for _, name := range names {
		if name == "" || len(name) > most || strings.ContainsRune(name, 0) {
			return fmt.Errorf(
				"the name %.40q cannot be kept: it is empty, longer than %d bytes, or contains a zero byte",
				name, most)
		}
	}
	return nil
}
