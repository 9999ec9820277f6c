package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	from uint64 // what this revision left was seen when the watch began
}

// Watch implements store.Entities.
func (s *Store) Watch(ctx context.Context, see func(store.Doc)) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.known == nil {
		s.move(true, 0) // from before the documents are read, changes wait to be seen
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
		s.known = map[string]bool{}
		for _, doc := range docs {
			s.known[field(doc.Key)] = true
		}
		s.move(true, last)
		s.running.Go(s.follow)
	}
	return nil
}

// all reads every document, by revision, and the last revision that was given.
func (s *Store) all(ctx context.Context) (docs []store.Doc, last uint64, err error) {
	var fields *redis.MapStringStringCmd
	var revision *redis.StringCmd
	_, err = s.db.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		fields, revision = tx.HGetAll(ctx, docsKey), tx.Get(ctx, lastKey)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil: nothing was ever put
		return nil, 0, err
	}
	for field, value := range fields.Val() {
		number, body, _ := strings.Cut(value, " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: the document %q has no revision", docsKey, field)
		}
		docs = append(docs, store.Doc{Key: parseField(field), Revision: n, Body: []byte(body)})
	}
	slices.SortFunc(docs, func(a, b store.Doc) int { return cmp.Compare(a.Revision, b.Revision) })
	last, _ = revision.Uint64()
	return docs, last, nil
}

// follow shows changes as they come, until the store is closed.
func (s *Store) follow() {
	const patience, pause = 5 * time.Second, 100 * time.Millisecond
	whole := true
	for s.ctx.Err() == nil {
		entries, err := s.feed.XRead(s.ctx, &redis.XReadArgs{
			Streams: []string{changes, fmt.Sprintf("%d-1", s.seen())}, Count: 100, Block: patience,
		}).Result()
		switch {
		case errors.Is(err, redis.Nil): // no change for so long
		case err == nil && whole && s.showChanges(entries[0].Messages):
		default:
			if err == nil {
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

// showChanges shows the next changes, and tells whether none was missing.
func (s *Store) showChanges(entries []redis.XMessage) bool {
	s.watching.Lock()
	defer s.watching.Unlock()
	for _, entry := range entries {
		number, _, _ := strings.Cut(entry.ID, "-")
		revision, err := strconv.ParseUint(number, 10, 64)
		if err != nil || revision != s.seen()+1 {
			return false
		}
		field, _ := entry.Values["field"].(string)
		doc := store.Doc{Key: parseField(field), Revision: revision}
		if body, found := entry.Values["body"].(string); found {
			doc.Body = []byte(body)
			s.known[field] = true
		} else {
			delete(s.known, field)
		}
		s.show(doc)
		s.move(true, revision)
	}
	return true
}

// showAll shows what changed since the last change that was seen, from the documents themselves.
func (s *Store) showAll() error {
	s.watching.Lock()
	defer s.watching.Unlock()
	docs, last, err := s.all(s.ctx)
	if err != nil {
		return err
	}
	before := s.seen()
	if last < before { // this Redis has forgotten something, or is another one
		before = 0
		for i := range s.watches {
			s.watches[i].from = 0
		}
	}
	gone := s.known
	s.known = map[string]bool{}
	for _, doc := range docs {
		delete(gone, field(doc.Key))
		s.known[field(doc.Key)] = true
		if doc.Revision > before {
			s.show(doc)
		}
	}
	for field := range gone {
		s.show(store.Doc{Key: parseField(field), Revision: last})
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

// awaitSeen waits until those who watch have seen the revision.
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
