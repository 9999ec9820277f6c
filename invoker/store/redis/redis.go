// Package redis is a store for more than one invoker.
//
// What is promised is only as durable as Redis makes it. It must run with
//
//	appendonly yes, appendfsync always, no-appendfsync-on-rewrite no     an answer comes after the fsync, which callers share
//	maxmemory-policy noeviction, or no maxmemory                         nothing is thrown away behind our back
//
// Open asks for these settings and refuses others; where it may not ask, it warns. With them, a Redis whose disk is full ends itself,
// and the invoker's changes fail until it is back. It is one Redis, 7.0 or newer, without cluster.
//
// Every change is one Lua script: all of it or nothing. All changes of documents are numbered, and their numbers are their revisions and
// their ids in a stream, which every invoker follows; where one is missing, it reads everything again. Nothing is tried
// twice behind the caller's back. Finished records go in the background, many at a time.
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

// patience is how long an answer of Redis is waited for: a disk may stall for seconds.
const patience = 10 * time.Second

// Store is a connection to a Redis.
type Store struct {
	db     *redis.Client
	feed   *redis.Client // for the one who waits for changes
	where  string
	retain int64
	log    *slog.Logger

	records *pending.Records
	wakes   chan struct{}
	lease   lease

	ctx     context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup

	watching sync.Mutex // held while changes are seen
	watches  []watch
	known    map[string]uint64 // the revision of each document that was seen; nil: nobody follows yet
	gone     map[string]uint64 // of what was seen to be deleted, and is still to come in the stream

	place    sync.Mutex
	follows  bool          // somebody watches, or is about to
	position uint64        // the last change that was seen
	moved    chan struct{} // closed when one of these changes
}

// Open connects to redis://[user:password@]host[:port][/database], rediss:// for TLS, or unix://[user:password@]path[?db=database], and
// checks that this Redis can keep promises. Of the activation records, the newest are retained, as many as fit in about retain bytes.
func Open(ctx context.Context, url string, retain int64, log *slog.Logger) (*Store, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("store: the address of a Redis is redis://[user:password@]host[:port][/database], rediss://… or unix://path")
	}
	logging.Disable() // what goes wrong is answered to callers, or logged by us
	options.DialerRetries = 1
	options.MaxRetries = -1 // a change that was made and not acknowledged would meet itself
	options.PoolSize = 128  // callers share an fsync as far as they have connections
	options.ReadTimeout, options.WriteTimeout = patience, patience
	options.ContextTimeoutEnabled = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // of a hosted service
	s := &Store{
		db: redis.NewClient(options), feed: redis.NewClient(options), where: options.Addr, retain: retain, log: log,
		wakes: make(chan struct{}, 1), moved: make(chan struct{}), lease: lease{missFor: missFor},
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

// Close writes what is on its way and disconnects.
func (s *Store) Close() error {
	if s.ctx.Err() != nil {
		return nil
	}
	s.records.Close()
	s.end()
	_ = s.feed.Close() // ends the wait for changes
	s.running.Wait()
	s.giveUp()
	err := s.db.Close()
	if left := s.records.Left(); left > 0 {
		err = fmt.Errorf("store redis %s: %d activation records could not be written", s.where, left)
	}
	return err
}

// explain gives the errors of the client the store's words.
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
	if refused := redis.Error(nil); errors.As(err, &refused) || errors.Is(err, redis.ErrPoolTimeout) || notDialled(err) {
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
	lastKey   = prefix + "revision" // the last one given
	changes   = prefix + "changes"  // stream: revision-1 → field, the revision before
	usedKey   = prefix + "used"     // hash: part, zero byte, namespace → how much; "revision" → as of which

	invokersKey = prefix + "invokers"  // hash: name → epoch of its process
	leaseKey    = prefix + "lease:"    // + invoker: the epoch of its process, as long as that lives
	promiseKey  = prefix + "promise:"  // + id: hash
	promisesKey = prefix + "promises:" // + invoker: sorted set of ids
	recordKey   = prefix + "record:"   // + id: hash
	recordsKey  = prefix + "records"   // + ":" + namespace: sorted set of Orders; + zero byte + name: of one name in it
	heldKey     = prefix + "held"      // sorted set of namespaces by the bytes of their records
)

// field is a document's in docs and code.
func field(k store.Key) string {
	return strings.Join([]string{string(k.Kind), k.Namespace, k.Name}, "\x00")
}

func parseField(field string) store.Key {
	parts := append(strings.SplitN(field, "\x00", 3), "", "")
	return store.Key{Kind: store.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
}
