package embedded

import (
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/store"
)

// keep writes finished records in place of their promises, and drops the oldest of all that retain bytes have no room for. Records that
// no store can keep are refused: they are counted, and must not hold up the others.
func keep(tx *bbolt.Tx, finished []*activation.Record, retain int64) (refused int, err error) {
	size := number(tx.Bucket(meta), bytesKey)
	added := 0
	promised, _ := tx.Bucket(promises).Cursor().First() // where there is none, none is looked for
	for _, r := range finished {
		value, err := r.MarshalBinary()
		if err != nil || store.CheckNames(r.ID, r.Namespace, r.ListName()) != nil {
			refused++
			continue
		}
		if promised != nil {
			if err := tx.Bucket(promises).Delete([]byte(r.ID)); err != nil {
				return 0, err
			}
		}
		if tx.Bucket(orders).Get([]byte(r.ID)) != nil {
			continue // the first record counts
		}
		if err := add(tx, r, value); err != nil {
			return 0, err
		}
		size += cost(r, value)
		added++
	}
	if added == 0 {
		return refused, nil
	}
	freed, err := trim(tx, size-retain, 2*added)
	if err != nil {
		return 0, err
	}
	return refused, putNumber(tx.Bucket(meta), bytesKey, size-freed)
}

// trim drops the oldest records until excess bytes are free, but not more than most records, so that a lowered bound is reached step
// by step and nobody waits for it.
func trim(tx *bbolt.Tx, excess int64, most int) (freed int64, err error) {
	for ; freed < excess && most > 0; most-- {
		order, value := tx.Bucket(records).Cursor().First()
		if order == nil {
			break
		}
		var r activation.Record
		if err := r.UnmarshalBinary(value); err != nil {
			return 0, fmt.Errorf("%w: %w", errDamaged, err)
		}
		freed += cost(&r, value)
		if err := remove(tx, &r); err != nil {
			return 0, err
		}
	}
	return freed, nil
}

// cost is about what a record takes in the file.
func cost(r *activation.Record, value []byte) int64 {
	const keys = 4*16 + 4*activation.OrderPrefix // four entries, each with bbolt's head and an instant
	return int64(len(value) + keys + 5*len(r.ID) + 2*len(r.Namespace) + len(r.ListName()))
}

// places are the record's keys in byNamespace and byName.
func places(r *activation.Record) (inNamespace, underName []byte) {
	return []byte(r.Namespace + "\x00" + r.Order()), []byte(r.Namespace + "\x00" + r.ListName() + "\x00" + r.Order())
}

func add(tx *bbolt.Tx, r *activation.Record, value []byte) error {
	order := []byte(r.Order())
	inNamespace, underName := places(r)
	byTime, byID := tx.Bucket(records), tx.Bucket(orders)
	byTime.FillPercent, byID.FillPercent = 0.9, 0.9 // they come in about their order
	for _, entry := range []struct {
		bucket     *bbolt.Bucket
		key, value []byte
	}{
		{byTime, order, value},
		{byID, []byte(r.ID), order},
		{tx.Bucket(byNamespace), inNamespace, nil},
		{tx.Bucket(byName), underName, nil},
	} {
		if err := entry.bucket.Put(entry.key, entry.value); err != nil {
			return err
		}
	}
	return nil
}

func remove(tx *bbolt.Tx, r *activation.Record) error {
	inNamespace, underName := places(r)
	for _, entry := range []struct {
		bucket *bbolt.Bucket
		key    []byte
	}{
		{tx.Bucket(records), []byte(r.Order())},
		{tx.Bucket(orders), []byte(r.ID)},
		{tx.Bucket(byNamespace), inNamespace},
		{tx.Bucket(byName), underName},
	} {
		if err := entry.bucket.Delete(entry.key); err != nil {
			return err
		}
	}
	return nil
}
