package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
)

type watch struct {
	ctx  context.Context
	see  func(store.Doc)
	from uint64 // the watch began with the documents as of this revision
}

// Watch implements store.Entities.
func (s *Store) Watch(ctx context.Context, see func(store.Doc)) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.known == nil {
		s.move(true, 0) // changes wait from before the documents are read
	}
	docs, last, err := s.all(ctx)
	if err != nil {
		if s.known == nil {
			s.move(false, 0)
		}
		return s.explain(err)
	}
	for _, doc := range docs {
		see(doc)
	}
	s.watches = append(s.watches, watch{ctx, see, last})
	if s.known == nil {
		s.known, s.gone = map[string]uint64{}, map[string]uint64{}
		for _, doc := range docs {
			s.known[field(doc.Key)] = doc.Revision
		}
		s.move(true, last)
		s.running.Go(s.follow)
	}
	return nil
}

// all returns every document, by revision, and the last revision that was assigned.
func (s *Store) all(ctx context.Context) (docs []store.Doc, last uint64, err error) {
	var fields *redis.MapStringStringCmd
	var revision *redis.StringCmd
	_, err = s.db.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		fields, revision = tx.HGetAll(ctx, docsKey), tx.Get(ctx, lastKey)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil: no document was ever put
		return nil, 0, err
	}
	for field, value := range fields.Val() {
		doc, err := parseDoc(field, value)
		if err != nil {
			return nil, 0, err
		}
		docs = append(docs, doc)
	}
	slices.SortFunc(docs, func(a, b store.Doc) int { return cmp.Compare(a.Revision, b.Revision) })
	last, _ = revision.Uint64()
	return docs, last, nil
}

// parseDoc reads a document as it lies in docs.
func parseDoc(field, value string) (store.Doc, error) {
	number, body, _ := strings.Cut(value, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return store.Doc{}, fmt.Errorf("%s: the document %q has no revision", docsKey, field)
	}
	return store.Doc{Key: parseField(field), Revision: n, Body: []byte(body)}, nil
}

// follow shows changes to the watcher as they come, until the store is closed.
func (s *Store) follow() {
	const patience, pause = 5 * time.Second, 100 * time.Millisecond
	whole := true
	for s.ctx.Err() == nil {
		entries, err := s.feed.XRead(s.ctx, &redis.XReadArgs{
			Streams: []string{changes, fmt.Sprintf("%d-1", s.seen())}, Count: 100, Block: patience,
		}).Result()
		switch {
		case errors.Is(err, redis.Nil) && !s.forgotten(): // no change came within the time
		case err == nil && whole && s.showChanges(entries[0].Messages):
		default:
			if err == nil || errors.Is(err, redis.Nil) {
				err = errors.New("changes are missing from the stream")
			}
			if whole && s.ctx.Err() == nil {
				s.log.Warn("documents are read again", "redis", s.where, "reason", err)
			}
			if whole = s.showAll() == nil; !whole {
				select {
				case <-time.After(pause):
				case <-s.ctx.Done():
				}
			}
		}
	}
}

// forgotten reports whether Redis assigns lower revisions than the watcher has seen: it was
// emptied, or is another one.
func (s *Store) forgotten() bool {
	last, err := s.db.Get(s.ctx, lastKey).Uint64()
	return (err == nil || errors.Is(err, redis.Nil)) && last < s.seen()
}

// showChanges shows the next changes, and reports whether none was missing. It shows the document
// as it is now, which may be newer than the change. The change that made it so is then not shown
// again.
func (s *Store) showChanges(entries []redis.XMessage) bool {
	s.watching.Lock()
	defer s.watching.Unlock()
	now, last, err := s.current(entries)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		number, _, _ := strings.Cut(entry.ID, "-")
		revision, err := strconv.ParseUint(number, 10, 64)
		if err != nil || before(entry, revision) != s.seen() {
			return false
		}
		field, _ := entry.Values["field"].(string)
		if doc, found := now[field]; max(s.known[field], s.gone[field]) >= revision {
			// The watcher has seen this revision or a later one already.
		} else if found {
			s.known[field] = doc.Revision
			s.show(doc)
		} else {
			delete(s.known, field)
			s.gone[field] = last
			s.show(store.Doc{Key: parseField(field), Revision: last})
		}
		s.move(true, revision)
	}
	maps.DeleteFunc(s.gone, func(_ string, revision uint64) bool { return revision <= s.seen() })
	return true
}

// before returns the revision before a change. Entries of a former version hold a body and no such
// revision: there it is the change's own less one.
func before(entry redis.XMessage, revision uint64) uint64 {
	after, found := entry.Values["after"].(string)
	if !found {
		return revision - 1
	}
	n, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		return revision // not seen yet, so it counts as a gap
	}
	return n
}

// current returns the documents that entries name, and the last revision that was assigned.
func (s *Store) current(
	entries []redis.XMessage,
) (docs map[string]store.Doc, last uint64, err error) {
	var fields []string
	for _, entry := range entries {
		if field, _ := entry.Values["field"].(string); !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	var values *redis.SliceCmd
	var revision *redis.StringCmd
	_, err = s.db.TxPipelined(s.ctx, func(tx redis.Pipeliner) error {
		values, revision = tx.HMGet(s.ctx, docsKey, fields...), tx.Get(s.ctx, lastKey)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	docs = map[string]store.Doc{}
	for i, field := range fields {
		if value, found := values.Val()[i].(string); found {
			if docs[field], err = parseDoc(field, value); err != nil {
				return nil, 0, err
			}
		}
	}
	last, err = revision.Uint64()
	return docs, last, err
}

// showAll shows everything that changed since the last change that was seen, by reading the
// documents themselves.
func (s *Store) showAll() error {
	s.watching.Lock()
	defer s.watching.Unlock()
	docs, last, err := s.all(s.ctx)
	if err != nil {
		return err
	}
	before := s.known
	if last < s.seen() { // this Redis has forgotten changes, or is another one
		before = map[string]uint64{}
		for i := range s.watches {
			s.watches[i].from = 0
		}
	}
	were := s.known
	s.known, s.gone = map[string]uint64{}, map[string]uint64{}
	for _, doc := range docs {
		field := field(doc.Key)
		s.known[field] = doc.Revision
		if doc.Revision > before[field] {
			s.show(doc)
		}
	}
	for field, revision := range were {
		if s.known[field] == 0 {
			s.show(store.Doc{Key: parseField(field), Revision: max(last, revision+1)})
		}
	}
	s.move(true, last)
	return nil
}

func (s *Store) show(doc store.Doc) {
	s.watches = slices.DeleteFunc(s.watches, func(w watch) bool { return w.ctx.Err() != nil })
	for _, w := range s.watches {
		if doc.Revision > w.from {
			w.see(doc)
		}
	}
}

func (s *Store) seen() uint64 {
	s.place.Lock()
	defer s.place.Unlock()
	return s.position
}

func (s *Store) move(follows bool, position uint64) {
	s.place.Lock()
	defer s.place.Unlock()
	s.follows, s.position = follows, position
	close(s.moved)
	s.moved = make(chan struct{})
}

// awaitSeen waits until the watcher has seen the revision.
func (s *Store) awaitSeen(ctx context.Context, revision uint64) error {
	for {
		s.place.Lock()
		seen, moved := !s.follows || s.position >= revision, s.moved
		s.place.Unlock()
		if seen {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return store.ErrClosed
		}
	}
}
