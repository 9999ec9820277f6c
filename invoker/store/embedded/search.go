package embedded

import (
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/activation"
)

// walk shows the blocks, newest first, until more is false. They are not opened yet.
func walk(tx *bbolt.Tx, see func(*block) (more bool, err error)) error {
	var b block
	c := tx.Bucket(heads).Cursor()
	for key, value := c.Last(); key != nil; key, value = c.Prev() {
		b.key = key
		if err := b.decode(value); err != nil {
			return err
		}
		if more, err := see(&b); !more || err != nil {
			return err
		}
	}
	return nil
}

// find returns the record of that id as it is kept, or nil. Where ids rise with time, as those of NewID do, it opens only blocks that
// have records of activations older and younger than this one.
func find(tx *bbolt.Tx, id string) (record []byte, err error) {
	err = walk(tx, func(b *block) (bool, error) {
		if id < string(b.lowest) || id > string(b.highest) {
			return id <= string(b.highestBefore), nil
		}
		if err := b.open(tx); err != nil {
			return false, err
		}
		e := b.entries()
		for e.next() {
			if string(e.order[activation.OrderPrefix:]) == id {
				record = e.value
				return false, nil
			}
		}
		if e.bad {
			return false, errDamaged
		}
		return id <= string(b.highestBefore), nil
	})
	return record, err
}

// newest are the Orders of the most newest records that the filter takes, and these and perhaps other records by their Order.
func newest(tx *bbolt.Tx, f activation.Filter, most int) (orders []string, records map[string][]byte, err error) {
	records = map[string][]byte{}
	if most == 0 {
		return nil, records, nil
	}
	low, high := bounds(f)
	err = walk(tx, func(b *block) (bool, error) {
		if b.newest < low || b.oldest >= high {
			return b.newestBefore >= low, nil
		}
		err := b.matching(tx, &f, low, high, func(e *entries) {
			order := string(e.order)
			orders = append(orders, order)
			records[order] = e.value
		})
		if len(orders) >= most {
			slices.SortFunc(orders, func(a, b string) int { return strings.Compare(b, a) })
			orders = orders[:most]
			low = startOf(orders[most-1])
		}
		return b.newestBefore >= low, err
	})
	return orders, records, err
}

// count is how many the filter takes.
func count(tx *bbolt.Tx, f activation.Filter) (n int, err error) {
	low, high := bounds(f)
	err = walk(tx, func(b *block) (bool, error) {
		var err error
		switch {
		case b.newest < low || b.oldest >= high:
		case b.oldest >= low && b.newest < high:
			for _, t := range b.names {
				if t.isOf(&f) {
					n += int(t.count)
				}
			}
		default:
			err = b.matching(tx, &f, low, high, func(*entries) { n++ })
		}
		return b.newestBefore >= low, err
	})
	return n, err
}

// matching shows the records that the filter takes and that started from low up to, but without, high.
func (b *block) matching(tx *bbolt.Tx, f *activation.Filter, low, high uint64, see func(*entries)) error {
	taken, some := make([]bool, len(b.names)), false
	for i, t := range b.names {
		taken[i] = t.isOf(f)
		some = some || taken[i]
	}
	if !some {
		return nil
	}
	if err := b.open(tx); err != nil {
		return err
	}
	e := b.entries()
	for e.next() {
		if e.name >= uint64(len(taken)) {
			return errDamaged
		}
		if start := startOf(string(e.order)); taken[e.name] && low <= start && start < high {
			see(&e)
		}
	}
	if e.bad {
		return errDamaged
	}
	return nil
}

// bounds are what the filter takes: starts from low up to, but without, high.
func bounds(f activation.Filter) (low, high uint64) {
	first, end := f.Range()
	return startOf(first), startOf(end)
}
