package embedded

import (
	"context"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// Used implements store.Entities.
func (s *Store) Used(_ context.Context, namespace string) (store.Space, error) {
	s.watching.Lock() // makes sure that no transaction is under way
	defer s.watching.Unlock()
	return s.used.now[namespace], closed(s.db.View(func(*bbolt.Tx) error { return nil }))
}

// grow changes what a document of the namespace takes from before to after, unless that is too
// much.
func (s *Store) grow(namespace string, before, after, most store.Space) error {
	now := s.used.now[namespace]
	then := store.Space{
		Entities:  now.Entities - before.Entities + after.Entities,
		Documents: now.Documents - before.Documents + after.Documents,
		Code:      now.Code - before.Code + after.Code,
	}
	err := most.Allow(now, then)
	if err == nil {
		s.used.set(namespace, then)
	}
	return err
}

// taken returns the space of a document, or zero without a document.
func taken(tx *bbolt.Tx, key []byte) (t store.Space) {
	value := tx.Bucket(docs).Get(key)
	if value == nil {
		return t
	}
	t.Entities, t.Documents = 1, int64(len(value)-8)
	if b := tx.Bucket(code).Bucket(key); b != nil {
		t.Code = int64(len(b.Get(codeKey)))
	}
	return t
}

// countUsed counts what every namespace takes.
func (s *Store) countUsed(tx *bbolt.Tx) error {
	return tx.Bucket(docs).ForEach(func(key, _ []byte) error {
		k, err := parseDocKey(key)
		if err == nil {
			s.used.put(k.Namespace, s.used.now[k.Namespace].Plus(taken(tx, key)))
		}
		return err
	})
}
