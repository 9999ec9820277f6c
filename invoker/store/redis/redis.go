// Package redis is a store for more than one invoker.
//
// A promise is only as durable as Redis makes it. Redis must run with
//
//	appendonly yes, appendfsync always, no-appendfsync-on-rewrite no
//	    an answer comes after the fsync, which callers share
//	maxmemory-policy noeviction, or no maxmemory
//	    Redis evicts nothing
//
// Open checks these settings and refuses others; if it may not read them, it logs a warning. With
// these settings, a Redis whose disk is full ends itself, and the invoker's changes fail until it
// is back. The store uses one Redis, 7.0 or newer, without cluster mode.
//
// Every change is one Lua script, so it happens completely or not at all. All changes of documents
// are numbered. The numbers are the documents' revisions and the ids in a stream, which every
// invoker follows; if a number is missing, the invoker reads everything again. The client does not
// retry changes by itself. Finished records are sent in the background, many at a time.
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/pending"
)

// patience is the time that the store waits for an answer of Redis: a disk may stall for seconds.
const patience = 10 * time.Second

// Store is a connection to a Redis.
type Store struct {
	db     *redis.Client
	feed   *redis.Client // the connection that waits for changes
	where  string
	retain int64
	log    *slog.Logger

	records *pending.Records
	wakes   chan struct{}
	lease   lease

	ctx     context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup

	watching sync.Mutex // held while the watcher sees changes
	watches  []watch
	// the revision of each document that the watcher has seen; nil: nobody follows yet
	known map[string]uint64
	// revisions of documents that were seen as deleted while the deletion is still to come in the
	// stream
	gone map[string]uint64

	place    sync.Mutex
	follows  bool          // a watcher is there, or about to come
	position uint64        // the last change that the watcher has seen
	moved    chan struct{} // closed when one of these changes
}

// Open connects to redis://[user:password@]host[:port][/database], rediss:// for TLS, or
// unix://[user:password@]path[?db=database], and checks that this Redis can keep promises. It
// retains the newest activation records, as many as fit in about retain bytes.
func Open(ctx context.Context, url string, retain int64, log *slog.Logger) (*Store, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New(
			"store: the address of a Redis is redis://[user:password@]host[:port][/database], rediss://… or unix://path")
	}
	logging.Disable() // errors are returned to callers, or the store logs them
	options.DialerRetries = 1
	// a retry of a change that was made but not acknowledged would conflict with itself
	options.MaxRetries = -1
	options.PoolSize = 128 // callers share an fsync only if each has a connection
	options.ReadTimeout, options.WriteTimeout = patience, patience
	options.ContextTimeoutEnabled = true
	// notifications of hosted services
	options.MaintNotificationsConfig = &maintnotifications.Config{
		Mode: maintnotifications.ModeDisabled,
	}
	s := &Store{
		db: redis.NewClient(options), feed: redis.NewClient(options), where: options.Addr,
		retain: retain, log: log,
		wakes: make(chan struct{}, 1), moved: make(chan struct{}),
		lease: lease{renewEvery: renewEvery, missFor: missFor},
	}
	if err := s.check(ctx); err != nil {
		_ = errors.Join(s.db.Close(), s.feed.Close())
		return nil, fmt.Errorf("store redis %s: %w", s.where, err)
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.records = pending.New(pending.Limit, s.wake, log)
	s.running.Go(s.write)
	return s, nil
}

func (s *Store) wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}

// Close writes what is pending and disconnects.
func (s *Store) Close() error {
	if s.ctx.Err() != nil {
		return nil
	}
	s.records.Close()
	s.end()
	_ = s.feed.Close() // ends the read that waits for changes
	s.running.Wait()
	s.giveUp()
	err := s.db.Close()
	if left := s.records.Left(); left > 0 {
		err = fmt.Errorf("store redis %s: %d activation records could not be written",
			s.where, left)
	}
	return err
}

// explain translates the client's errors into the store's.
func (s *Store) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, redis.ErrClosed), s.ctx.Err() != nil:
		return store.ErrClosed
	case errors.Is(err, redis.Nil):
		return store.ErrNotFound
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if refused := redis.Error(nil); errors.As(err, &refused) ||
		errors.Is(err, redis.ErrPoolTimeout) || notDialled(err) {
		err = store.NotKept(err) // a script fails before its first write or not at all
	}
	return fmt.Errorf("store redis %s: %w", s.where, err)
}

func notDialled(err error) bool {
	var of *net.OpError
	return errors.As(err, &of) && of.Op == "dial"
}

// The keys.
const (
	prefix    = "fastiov:"
	formatKey = prefix + "format"
	docsKey   = prefix + "docs"     // hash: field → revision, blank, body
	codeKey   = prefix + "code"     // hash: field → source
	lastKey   = prefix + "revision" // the last one assigned
	changes   = prefix + "changes"  // stream: revision-1 → field, the revision before
	// hash: part, zero byte, namespace → how much; "revision" → as of which
	usedKey = prefix + "used"

	invokersKey = prefix + "invokers"  // hash: name → epoch of its process
	leaseKey    = prefix + "lease:"    // + invoker: the epoch of its process, while that lives
	promiseKey  = prefix + "promise:"  // + id: hash
	promisesKey = prefix + "promises:" // + invoker: sorted set of ids
	recordKey   = prefix + "record:"   // + id: hash
	// + ":" + namespace: sorted set of Orders; + zero byte + name: Orders of one name in it
	recordsKey = prefix + "records"
	heldKey    = prefix + "held" // sorted set of namespaces by the bytes of their records
)

// field returns a document's field in docs and code.
func field(k store.Key) string {
	return strings.Join([]string{string(k.Kind), k.Namespace, k.Name}, "\x00")
}

func parseField(field string) store.Key {
	parts := append(strings.SplitN(field, "\x00", 3), "", "")
	return store.Key{Kind: store.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
}
