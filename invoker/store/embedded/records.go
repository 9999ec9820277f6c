package embedded

import (
	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// keep writes finished records in place of their promises, and drops the records for which retain
// bytes have no room. It refuses and counts records that no store can keep, and drops their
// promises, so that they block nothing.
func (s *Store) keep(tx *bbolt.Tx, finished []*store.Record) (refused int, err error) {
	if len(finished) == 0 {
		return 0, nil
	}
	if s.shares == nil {
		if s.shares, err = countShares(tx); err != nil {
			return 0, err
		}
	}
	b, err := lastBlock(tx)
	if err != nil {
		return 0, err
	}
	var (
		known = string(later(b.highest, b.highestBefore)) // no kept record has a higher id
		// if there are no promises, keep looks for none
		promised, _ = tx.Bucket(promises).Cursor().First()
		size        = number(tx.Bucket(meta), bytesKey) - b.cost()
		added       = 1 // the number of blocks
		full        []*block
	)
	for _, r := range finished {
		var earlier []byte // the first record counts
		if r.ID <= known {
			if earlier, _, err = find(tx, r.ID); err != nil {
				return 0, err
			}
		}
		if b.full() {
			if err := b.put(tx); err != nil {
				return 0, err
			}
			size += b.cost()
			full = append(full, b)
			b = b.next()
			added++
		}
		if earlier == nil && b.add(r) != nil {
			refused++
		}
		if promised != nil {
			if err := tx.Bucket(promises).Delete([]byte(r.ID)); err != nil {
				return 0, err
			}
		}
	}
	if err := b.put(tx); err != nil {
		return 0, err
	}
	size += b.cost()
	if len(full) > 0 && b.empty() { // no record was added after all
		full = full[:len(full)-1]
	}
	for _, b := range full {
		if err := s.shares.add(b); err != nil {
			return 0, err
		}
	}
	freed, err := s.shares.lose(tx, size-s.retain, 8*added)
	if err != nil {
		return 0, err
	}
	return refused, putNumber(tx.Bucket(meta), bytesKey, size-freed)
}

// riseAbove makes new ids higher than those in the file. Otherwise, after the clock was wrong, each
// new id would be searched for among all records since then.
func riseAbove(tx *bbolt.Tx) error {
	key, value := tx.Bucket(heads).Cursor().Last()
	if key == nil {
		return nil
	}
	var h head
	err := h.decode(value)
	store.RiseAbove(string(later(h.highest, h.highestBefore)))
	return err
}
