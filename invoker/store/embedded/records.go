package embedded

import (
	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// keep writes finished records in place of their promises, and drops what retain bytes have no room for. Records
// that no store can keep are refused: they are counted, and must not hold up the others.
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
		known       = string(later(b.highest, b.highestBefore)) // no record of a higher id is kept yet
		promised, _ = tx.Bucket(promises).Cursor().First()      // where there is none, none is looked for
		size        = number(tx.Bucket(meta), bytesKey) - b.cost()
		added       = 1 // blocks
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
			continue
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
	if len(full) > 0 && b.empty() { // no record came after all
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

// riseAbove has new ids be higher than those in the file: then none of them is looked for among all that were kept since the clock was
// wrong.
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
