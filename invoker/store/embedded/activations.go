package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/pending"
)

// encodePromise writes a promise as a line of JSON, then its body as it came.
func encodePromise(a store.Accepted) ([]byte, error) {
	body := a.Body
	a.Body = nil
	head, err := json.Marshal(a)
	return slices.Concat(head, []byte{'\n'}, body), err
}

func decodePromise(value []byte) (a store.Accepted, err error) {
	head, body, _ := bytes.Cut(value, []byte{'\n'})
	if err := json.Unmarshal(head, &a); err != nil {
		return a, fmt.Errorf("%w: a promise: %w", errDamaged, err)
	}
	a.Body = bytes.Clone(body)
	return a, nil
}

// Accept implements store.Activations.
func (s *Store) Accept(ctx context.Context, a store.Accepted) error {
	if err := store.CheckNames(a.ID); err != nil {
		return err
	}
	value, err := encodePromise(a)
	if err != nil {
		return err
	}
	id := []byte(a.ID)
	return s.do(ctx, &call{apply: func(tx *bbolt.Tx) error {
		switch b := tx.Bucket(promises); {
		case b.Get(id) != nil:
			return store.ErrConflict
		case tx.Bucket(orders).Get(id) != nil:
			return nil
		default:
			return b.Put(id, value)
		}
	}})
}

// Sent implements store.Activations.
func (s *Store) Sent(ctx context.Context, id string) error {
	return s.do(ctx, &call{apply: func(tx *bbolt.Tx) error {
		b := tx.Bucket(promises)
		value := b.Get([]byte(id))
		if value == nil || s.records.Get(id) != nil {
			return store.ErrNotFound
		}
		a, err := decodePromise(value)
		if err != nil {
			return err
		}
		a.Sent = true
		if value, err = encodePromise(a); err != nil {
			return err
		}
		return b.Put([]byte(id), value)
	}})
}

// Finish implements store.Activations.
func (s *Store) Finish(r *activation.Record) { s.records.Add(r) }

// Lost implements store.Store.
func (s *Store) Lost() uint64 { return s.records.Lost() }

// Unfinished implements store.Activations.
func (s *Store) Unfinished(_ context.Context, invoker string) (list []store.Accepted, err error) {
	answered := s.records.IDs()
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(promises).ForEach(func(_, value []byte) error {
			a, err := decodePromise(value)
			if err == nil && a.Invoker == invoker && !answered[a.ID] {
				list = append(list, a)
			}
			return err
		})
	})
	slices.SortStableFunc(list, func(a, b store.Accepted) int { return a.At.Compare(b.At) })
	return list, closed(err)
}

// Get implements store.Activations.
func (s *Store) Get(_ context.Context, namespace, id string) (*activation.Record, error) {
	r := s.records.Get(id)
	if r == nil {
		r = new(activation.Record)
		err := s.db.View(func(tx *bbolt.Tx) error {
			order := tx.Bucket(orders).Get([]byte(id))
			if order == nil {
				return store.ErrNotFound
			}
			return r.UnmarshalBinary(tx.Bucket(records).Get(order))
		})
		if err != nil {
			return nil, closed(err)
		}
	}
	if r.Namespace != namespace {
		return nil, store.ErrNotFound
	}
	return r, nil
}

// List implements store.Activations.
func (s *Store) List(_ context.Context, f activation.Filter, skip, limit int) ([]*activation.Record, error) {
	onTheWay := s.records.Matching(f) // before the transaction: a record that leaves meanwhile is in the file
	list := []*activation.Record{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		var stored []string
		most := pending.First(skip, limit)
		each(tx, f, func(order []byte) bool {
			if len(stored) < most {
				stored = append(stored, string(order))
			}
			return len(stored) < most
		})
		for _, order := range pending.Page(onTheWay, stored, skip, limit) {
			r := onTheWay[order]
			if r == nil {
				r = new(activation.Record)
				if err := r.UnmarshalBinary(tx.Bucket(records).Get([]byte(order))); err != nil {
					return err
				}
			}
			list = append(list, r)
		}
		return nil
	})
	return list, closed(err)
}

// Count implements store.Activations.
func (s *Store) Count(_ context.Context, f activation.Filter) (n int, err error) {
	onTheWay := s.records.Matching(f)
	err = s.db.View(func(tx *bbolt.Tx) error {
		each(tx, f, func([]byte) bool { n++; return true })
		for order := range onTheWay {
			if tx.Bucket(records).Get([]byte(order)) == nil {
				n++
			}
		}
		return nil
	})
	return n, closed(err)
}

// each gives the Orders that the filter takes, newest first, until more is false.
func each(tx *bbolt.Tx, f activation.Filter, more func(order []byte) bool) {
	index, prefix := byNamespace, f.Namespace+"\x00"
	if f.Name != "" {
		index, prefix = byName, prefix+f.Name+"\x00"
	}
	low, high := f.Range()
	first, end := []byte(prefix+low), []byte(prefix+high)
	c := tx.Bucket(index).Cursor()
	key, _ := c.Seek(end)
	if key == nil {
		key, _ = c.Last()
	}
	for ; key != nil && bytes.Compare(key, end) >= 0; key, _ = c.Prev() {
	}
	for ; key != nil && bytes.Compare(key, first) >= 0; key, _ = c.Prev() {
		if !more(key[len(prefix):]) {
			return
		}
	}
}

func closed(err error) error {
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return store.ErrClosed
	}
	return err
}
