package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

type watch struct {
	ctx context.Context
	see func(store.Doc)
}

// Watch implements store.Entities. No transaction comes between the documents that it reads and the
// changes that follow.
func (s *Store) Watch(ctx context.Context, see func(store.Doc)) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(docs).ForEach(func(key, value []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			doc, err := parseDoc(key, value)
			if err == nil {
				see(doc)
			}
			return err
		})
	})
	if err == nil {
		s.watches = append(s.watches, watch{ctx, see})
	}
	return closed(err)
}

// tell shows the changes to all watchers.
func (s *Store) tell(calls []*call) {
	s.watches = slices.DeleteFunc(s.watches, func(w watch) bool { return w.ctx.Err() != nil })
	for _, c := range calls {
		if c.err != nil || c.change == nil {
			continue
		}
		for _, w := range s.watches {
			if w.ctx.Err() == nil {
				w.see(*c.change)
			}
		}
	}
}

// Put implements store.Entities.
func (s *Store) Put(
	ctx context.Context, doc store.Doc, source []byte, most store.Space,
) (uint64, error) {
	if err := doc.Check(); err != nil {
		return 0, err
	}
	key := docKey(doc.Key)
	c := &call{code: len(source)}
	c.apply = func(tx *bbolt.Tx) error {
		if revision(tx, key) != doc.Revision {
			return store.ErrConflict
		}
		before := taken(tx, key)
		after := store.Space{Entities: 1, Documents: int64(len(doc.Body)), Code: before.Code}
		if source != nil {
			after.Code = int64(len(source))
		}
		if err := s.grow(doc.Namespace, before, after, most); err != nil {
			return err
		}
		changed := doc
		changed.Body = bytes.Clone(doc.Body)
		var err error
		if changed.Revision, err = tx.Bucket(docs).NextSequence(); err != nil {
			return err
		}
		if err := tx.Bucket(docs).Put(key,
			append(binary.BigEndian.AppendUint64(nil, changed.Revision), doc.Body...)); err != nil {
			return err
		}
		c.change = &changed
		return putCode(tx, key, source)
	}
	if err := s.do(ctx, c); err != nil {
		return 0, err
	}
	return c.change.Revision, nil
}

// Delete implements store.Entities.
func (s *Store) Delete(ctx context.Context, k store.Key, old uint64) error {
	key := docKey(k)
	c := &call{}
	c.apply = func(tx *bbolt.Tx) error {
		switch revision(tx, key) {
		case 0:
			return store.ErrNotFound
		case old:
		default:
			return store.ErrConflict
		}
		if err := s.grow(k.Namespace, taken(tx, key), store.Space{}, store.Unbounded); err != nil {
			return err
		}
		revision, err := tx.Bucket(docs).NextSequence()
		if err != nil {
			return err
		}
		if err := tx.Bucket(docs).Delete(key); err != nil {
			return err
		}
		c.change = &store.Doc{Key: k, Revision: revision}
		return putCode(tx, key, []byte{})
	}
	return s.do(ctx, c)
}

// Code implements store.Entities.
func (s *Store) Code(_ context.Context, k store.Key) (source []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(code).Bucket(docKey(k))
		if b == nil {
			return store.ErrNotFound
		}
		source = bytes.Clone(b.Get(codeKey))
		return nil
	})
	return source, closed(err)
}

// revision returns the revision of the document, or 0 if it does not exist.
func revision(tx *bbolt.Tx, key []byte) uint64 {
	if value := tx.Bucket(docs).Get(key); value != nil {
		return binary.BigEndian.Uint64(value)
	}
	return 0
}

func putCode(tx *bbolt.Tx, key, source []byte) error {
	if source == nil {
		return nil
	}
	all := tx.Bucket(code)
	if all.Bucket(key) != nil {
		if err := all.DeleteBucket(key); err != nil {
			return err
		}
	}
	if len(source) == 0 {
		return nil
	}
	b, err := all.CreateBucket(key)
	if err != nil {
		return err
	}
	return b.Put(codeKey, source)
}
