// Package embedded is a store in one file, for one invoker, with nothing to start.
//
// One goroutine writes. It puts everything that waits into one transaction: changes of documents,
// promises and finished records. So all waiting callers share one fsync, but those with large code,
// of which a transaction writes one. A record waits most of a window for others, or goes with the
// next call that waits. Readers use the previous transaction at the same time, and add the records
// that are still pending.
//
// Records are kept in blocks (block.go) and found by walking the heads of blocks (search.go). When
// the room for records is used up, the namespaces that hold most lose their oldest ones (share.go).
//
// The documents and records of each namespace are counted when the file is opened, and then as they
// change (ledger.go), so the file does not store the counts.
//
// The file is bbolt's: copy-on-write pages under two alternating heads, so that a crash leaves the
// last transaction that was synced. It is locked while open. It grows as needed and never shrinks:
// the space of deleted data is used again.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/pending"
)

// Store is an open file.
type Store struct {
	path   string
	retain int64
	db     *bbolt.DB

	records *pending.Records
	wakes   chan struct{} // holds a value while there is something to write
	quit    chan struct{}
	done    chan struct{}

	mu     sync.Mutex
	calls  []*call
	closed bool

	watching sync.Mutex // held from before a transaction until watchers have seen its changes
	watches  []watch
	broken   error // why nothing can be written any more; only the writer uses it
	used     ledger[store.Space]
	shares   *shares // of the records; nil: must be counted
	commits  atomic.Int64
}

// A call is a change that a caller waits for.
type call struct {
	ctx context.Context
	// its errors ErrConflict, ErrNotFound and Full mean that it has written nothing
	apply  func(*bbolt.Tx) error
	change *store.Doc // the change that watchers are to see
	code   int        // bytes of it that the change writes
	err    error
	done   chan struct{}
}

// Open opens the file or makes a new one. It retains the newest activation records, as many as fit
// in about retain bytes.
func Open(path string, retain int64, log *slog.Logger) (*Store, error) {
	db, err := openFile(path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: path, retain: retain, db: db,
		wakes: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		used: newLedger[store.Space](),
	}
	err = db.View(func(tx *bbolt.Tx) (err error) {
		if err = cmp.Or(riseAbove(tx), s.countUsed(tx)); err == nil {
			s.shares, err = countShares(tx)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.records = pending.New(pending.Limit, s.wake, log)
	go s.write()
	return s, nil
}

// Close writes what is pending and unlocks the file.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()

	s.records.Close()
	close(s.quit)
	<-s.done
	err := s.db.Close()
	if left := s.records.Left(); left > 0 {
		err = fmt.Errorf("store %s: %d activation records could not be written; free some space",
			s.path, left)
	}
	return err
}

func (s *Store) wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}

// do passes a change to the writer, and returns when the change is durable or refused.
func (s *Store) do(ctx context.Context, c *call) error {
	c.ctx, c.done = ctx, make(chan struct{})
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	s.wake()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) write() {
	defer close(s.done)
	for {
		select {
		case <-s.wakes:
			s.commit()
		case <-s.quit:
			for more := true; more; more = s.waits() {
				s.commit()
			}
			return
		}
	}
}

// large is code that takes the disk so long that others notice it.
const large = 1 << 20

// take returns the calls for the next transaction: all that wait, but code only as far as that is
// not large together, or one that is by itself. So what writes none waits for two large codes at
// most: one under way, and one in its own transaction.
func (s *Store) take() (calls []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var later []*call
	code := 0
	for _, c := range s.calls {
		writes := c.code
		if c.ctx.Err() != nil { // nobody waits for it any more
			writes = 0
		}
		if writes > 0 && code > 0 && code+writes > large {
			later = append(later, c)
			continue
		}
		code += writes
		calls = append(calls, c)
	}
	if s.calls = later; len(later) > 0 {
		s.wake()
	}
	return calls
}

func (s *Store) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) > 0
}

// commit writes what waits in one transaction.
func (s *Store) commit() {
	calls := s.take()
	records := s.records.All()
	// otherwise commit tries whether there is room again
	if len(calls) == 0 && len(records) == 0 && s.records.Failed() == nil {
		return
	}

	s.watching.Lock()
	refused, err := 0, error(nil)
	if s.broken != nil {
		err = store.NotKept(s.broken)
	}
	if err == nil {
		err = s.db.Update(func(tx *bbolt.Tx) error {
			for _, c := range calls {
				if err := c.run(tx); err != nil {
					return err
				}
			}
			var err error
			refused, err = s.keep(tx, records)
			return err
		})
	}
	s.used.end(err == nil)
	if err == nil {
		s.tell(calls)
	} else {
		s.shares = nil // the failed transaction may have changed them
	}
	s.watching.Unlock()

	if err != nil {
		err = s.explain(err)
		s.records.Fail(err)
	} else {
		s.commits.Add(1)
		s.records.Done(len(records), refused)
	}
	for _, c := range calls {
		if err != nil {
			c.err = err
		}
		close(c.done)
	}
}

// run applies a call whose caller still waits. Its error ends the transaction.
func (c *call) run(tx *bbolt.Tx) error {
	if c.err = c.ctx.Err(); c.err != nil {
		return nil
	}
	c.err = c.apply(tx)
	var full *store.Full
	if errors.Is(c.err, store.ErrConflict) || errors.Is(c.err, store.ErrNotFound) ||
		errors.As(c.err, &full) {
		return nil
	}
	return c.err
}

// explain returns the meaning of a failed transaction. A full disk may have room again. After any
// other failure the content of the disk is unknown until the file is read again.
func (s *Store) explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("store: %w; %w, free some space", err, store.ErrNotKept)
	}
	if errors.Is(err, store.ErrNotKept) {
		return err
	}
	if s.broken == nil {
		s.broken = fmt.Errorf(
			"store %s: %w; nothing more is written to it, check the disk and start again",
			s.path, err)
	}
	return s.broken
}
