// Package store says what an invoker must not forget: entities, activation records, and what it accepted and has not finished.
//
// Two stores keep it: embedded (one file, nothing to start) and redis (for more than one invoker). storetest is the suite both pass.
// Reading an entity never asks the store: the invoker watches, and keeps what it saw decoded in memory.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/fastiov/fastiov/invoker/activation"
)

// Kind is a collection of documents.
type Kind string

const (
	Actions  Kind = "actions"
	Packages Kind = "packages"
	Triggers Kind = "triggers"
	Rules    Kind = "rules"
	Subjects Kind = "subjects"
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

// Entities are the documents.
type Entities interface {
	// Watch calls see with every document there is and returns; from then on with every change, one after another in the order of
	// each key's revisions, whoever made it, until ctx ends. The changes made through this Entities are seen before their call returns.
	Watch(ctx context.Context, see func(Doc)) error
	// Put keeps a document durably and returns its new revision. doc.Revision is the one it replaces, 0 where it must be new.
	// code, what an action's source is, is kept beside the body and out of memory; nil leaves it as it was.
	Put(ctx context.Context, doc Doc, code []byte) (revision uint64, err error)
	Delete(ctx context.Context, key Key, revision uint64) error
	Code(ctx context.Context, key Key) ([]byte, error)
}

// An Accepted activation was promised to a caller who does not wait for it.
type Accepted struct {
	ID      string
	Invoker string // whose it is to finish
	At      time.Time
	Sent    bool   // its /run may have been sent: it must never be run again
	Body    []byte // what is needed to run it, as the invoker wrote it
}

// Activations are what was promised and what came of it.
type Activations interface {
	// Accept returns when the promise is durable; promises made at the same time share an fsync.
	Accept(ctx context.Context, a Accepted) error
	// Sent returns when it is durable that the activation's /run may have been sent.
	Sent(ctx context.Context, id string) error
	// Finish keeps the record and drops the promise, both or neither. It does not wait: the record is found by Get and List at once and
	// is durable within Window. It waits only while more records are on their way to the disk than memory should hold.
	Finish(r *activation.Record)
	// Unfinished are the promises of an invoker that no record has answered, oldest first.
	Unfinished(ctx context.Context, invoker string) ([]Accepted, error)
	Get(ctx context.Context, namespace, id string) (*activation.Record, error)
	// List gives the records that the filter takes, newest first, without the first skip, at most limit; Count counts them all.
	List(ctx context.Context, f activation.Filter, skip, limit int) ([]*activation.Record, error)
	Count(ctx context.Context, f activation.Filter) (int, error)
}

// Window is how long a record that nobody was promised may take to be durable: what a crash can lose.
const Window = 50 * time.Millisecond

// A Store is both. Close makes durable what is on its way.
type Store interface {
	Entities
	Activations
	Close() error
}
