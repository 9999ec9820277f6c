package embedded

import (
	"bytes"
	"cmp"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/store"
)

// keep writes finished records in place of their promises, and drops the oldest blocks of all that retain bytes have no room for. Records
// that no store can keep are refused: they are counted, and must not hold up the others.
func keep(tx *bbolt.Tx, finished []*activation.Record, retain int64) (refused int, err error) {
	if len(finished) == 0 {
		return 0, nil
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
	)
	for _, r := range finished {
		if store.CheckNames(r.ID, r.Namespace, r.ListName()) != nil {
			refused++
			continue
		}
		var earlier []byte // the first record counts
		if r.ID <= known {
			if earlier, err = find(tx, r.ID); err != nil {
				return 0, err
			}
		}
		if b.full() {
			if err := b.put(tx); err != nil {
				return 0, err
			}
			size += b.cost()
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
	freed, err := trim(tx, size-retain, 2*added)
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
	activation.RiseAbove(string(later(h.highest, h.highestBefore)))
	return err
}

// trim drops the oldest blocks until excess bytes are free, but not the last one, and not more than most, so that a lowered bound is
// reached step by step and nobody waits for it.
func trim(tx *bbolt.Tx, excess int64, most int) (freed int64, err error) {
	all := tx.Bucket(heads)
	last, _ := all.Cursor().Last()
	for ; freed < excess && most > 0; most-- {
		key, _ := all.Cursor().First()
		if bytes.Equal(key, last) {
			break
		}
		b := block{key: bytes.Clone(key)}
		if err := b.open(tx); err != nil {
			return 0, err
		}
		freed += b.cost()
		if err := cmp.Or(tx.Bucket(blocks).DeleteBucket(b.key), all.Delete(b.key)); err != nil {
			return 0, err
		}
	}
	return freed, nil
}
