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
		if tx.Bucket(promises).Get(id) != nil {
			return store.ErrConflict
		}
		if record, _, err := find(tx, a.ID); record != nil || err != nil {
			return err
		}
		return tx.Bucket(promises).Put(id, value)
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
		if a.Sent {
			return store.ErrConflict
		}
		a.Sent = true
		if value, err = encodePromise(a); err != nil {
			return err
		}
		return b.Put([]byte(id), value)
	}})
}

// Take implements store.Activations. Only one process can have the file open.
func (s *Store) Take(context.Context, string) error { return nil }

// Adopt implements store.Activations. Unfinished returns all promises of the file already.
func (s *Store) Adopt(context.Context) ([]store.Accepted, error) { return nil, nil }

// Finish implements store.Activations.
func (s *Store) Finish(r *store.Record) { s.records.Add(r) }

// Refuse implements store.Activations. A promise that was asked for earlier is in an earlier
// transaction.
func (s *Store) Refuse(ctx context.Context, r *store.Record) error {
	return s.records.Write(ctx, r)
}

// Broken implements store.Store.
func (s *Store) Broken() error { return s.records.Failed() }

// Lost implements store.Store.
func (s *Store) Lost() uint64 { return s.records.Lost() }

// Unfinished implements store.Activations. It ignores the invoker's name: the process that has the
// file open finishes everything that the file promises.
func (s *Store) Unfinished(context.Context, string) (list []store.Accepted, err error) {
	answered := s.records.IDs()
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(promises).ForEach(func(_, value []byte) error {
			a, err := decodePromise(value)
			if err == nil && !answered[a.ID] {
				list = append(list, a)
			}
			return err
		})
	})
	slices.SortStableFunc(list, func(a, b store.Accepted) int { return a.At.Compare(b.At) })
	return list, closed(err)
}

// Get implements store.Activations.
func (s *Store) Get(_ context.Context, namespace, id string) (body []byte, err error) {
	// before the transaction: a record that leaves pending meanwhile is in the file
	onTheWay := s.records.Get(id)
	err = s.db.View(func(tx *bbolt.Tx) error {
		record, of, err := find(tx, id)
		switch {
		case err != nil:
			return err
		case record != nil && string(of) == namespace:
			body = bytes.Clone(record)
		case record == nil && onTheWay != nil && onTheWay.Namespace == namespace:
			body, err = onTheWay.Append(nil)
		default:
			return store.ErrNotFound
		}
		return err
	})
	return body, closed(err)
}

// List implements store.Activations.
func (s *Store) List(_ context.Context, f store.Filter, skip, limit int,
	see func([]byte) error) error {
	var orders []string
	var ahead map[string]*store.Record
	err := s.search(f, func(tx *bbolt.Tx, onTheWay map[string]*store.Record) error {
		from, most := pending.Stored(onTheWay, skip, limit)
		stored, err := page(tx, f, from, most)
		orders, ahead = pending.Page(onTheWay, stored, skip, limit), onTheWay
		return err
	})
	for len(orders) > 0 && err == nil {
		var some [][]byte
		if some, orders, err = s.portion(ahead, orders); err != nil {
			break
		}
		for _, body := range some {
			if err := see(body); err != nil {
				return err
			}
		}
	}
	return closed(err)
}

// portion reads some of the records with these Orders and returns the rest of the Orders. It leaves
// out records that were dropped meanwhile because they were the oldest.
func (s *Store) portion(ahead map[string]*store.Record, orders []string) (
	some [][]byte, left []string, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		for size := 0; len(orders) > 0 && size < store.Portion; orders = orders[1:] {
			var body []byte
			if r := ahead[orders[0]]; r != nil {
				var refused error
				if body, refused = r.Append(nil); refused != nil {
					continue
				}
			} else {
				record, _, err := find(tx, orders[0][store.OrderPrefix:])
				if err != nil {
					return err
				}
				if record == nil {
					continue
				}
				body = bytes.Clone(record)
			}
			some = append(some, body)
			size += len(body)
		}
		return nil
	})
	return some, orders, err
}

// Count implements store.Activations.
func (s *Store) Count(_ context.Context, f store.Filter) (n int, err error) {
	err = s.search(f, func(tx *bbolt.Tx, onTheWay map[string]*store.Record) (err error) {
		n, err = count(tx, f)
		n += len(onTheWay)
		return err
	})
	return n, err
}

// search calls do with a transaction and with the pending records that the filter takes, except
// those for whose id the file already has an earlier record.
func (s *Store) search(f store.Filter, do func(*bbolt.Tx, map[string]*store.Record) error) error {
	// before the transaction: a record that leaves pending meanwhile is in the file
	onTheWay := s.records.Matching(f)
	return closed(s.db.View(func(tx *bbolt.Tx) error {
		for order, r := range onTheWay {
			first, _, err := find(tx, r.ID)
			if err != nil {
				return err
			}
			if first != nil {
				delete(onTheWay, order)
			}
		}
		return do(tx, onTheWay)
	}))
}

func closed(err error) error {
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return store.ErrClosed
	}
	return err
}
