package embedded

import (
	"bytes"
	"context"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// Forget implements store.Activations.
func (s *Store) Forget(ctx context.Context, namespace string) (n int, err error) {
	onTheWay := len(s.records.Matching(store.Filter{Namespace: namespace}))
	err = s.do(ctx, &call{apply: func(tx *bbolt.Tx) error {
		promises, err := forgetPromises(tx, namespace)
		if err != nil {
			return err
		}
		records, err := s.forgetRecords(tx, namespace)
		n = onTheWay + promises + records
		return err
	}})
	return n, err
}

// portion is the number of blocks or promises that one Forget changes: a few megabytes.
const portion = 128

func forgetPromises(tx *bbolt.Tx, namespace string) (n int, err error) {
	var ids [][]byte
	c := tx.Bucket(promises).Cursor()
	for id, value := c.First(); id != nil && len(ids) < portion; id, value = c.Next() {
		a, err := decodePromise(value)
		if err != nil {
			return 0, err
		}
		if a.Namespace == namespace {
			ids = append(ids, bytes.Clone(id))
		}
	}
	for _, id := range ids {
		if err := tx.Bucket(promises).Delete(id); err != nil {
			return 0, err
		}
	}
	return len(ids), nil
}

func (s *Store) forgetRecords(tx *bbolt.Tx, namespace string) (n int, err error) {
	s.shares = nil // count again, because here the last block may lose records too
	all, err := countShares(tx)
	if err != nil {
		return 0, err
	}
	last, err := lastBlock(tx)
	if err != nil || last.empty() {
		return 0, err
	}
	if err := all.add(last); err != nil {
		return 0, err
	}
	freed := int64(0)
	for range portion {
		of := all.by[namespace]
		if of == nil {
			break
		}
		gone, space, err := all.sift(tx, of.blocks[0],
			func(of string) bool { return of == namespace })
		if err != nil {
			return 0, err
		}
		n += gone
		freed += space
	}
	size := number(tx.Bucket(meta), bytesKey) - freed
	return n, putNumber(tx.Bucket(meta), bytesKey, size)
}
