package embedded

import (
	"cmp"
	"slices"
	"sort"
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

// find returns the record of that id as it is kept, or nil. It begins with the first block that may have it: all that the blocks before
// hold is lower. Where ids rise with time, as those of NewID do, that is about where it is.
func find(tx *bbolt.Tx, id string) (record []byte, err error) {
	c := tx.Bucket(heads).Cursor()
	first, _ := c.First()
	last, value := c.Last()
	if last == nil {
		return nil, nil
	}
	var b block
	if err := b.decode(value); err != nil || id > string(b.highest) && id > string(b.highestBefore) {
		return nil, err
	}
	seek := func(back int) (key, value []byte) { return c.Seek(keyOf(numberOf(last) - uint64(back))) }
	back := sort.Search(int(numberOf(last)-numberOf(first)), func(back int) bool {
		_, value := seek(back)
		err = cmp.Or(err, b.decode(value))
		return string(b.highestBefore) < id
	})
	for key, value := seek(back); key != nil && record == nil && err == nil; key, value = c.Next() {
		b.key = key
		if err = b.decode(value); err == nil && string(b.lowest) <= id && id <= string(b.highest) {
			record, err = b.find(tx, id)
		}
	}
	return record, err
}

func (b *block) find(tx *bbolt.Tx, id string) ([]byte, error) {
	if err := b.open(tx); err != nil {
		return nil, err
	}
	e := b.entries()
	for e.next() {
		if string(e.order[activation.OrderPrefix:]) == id {
			return e.value, nil
		}
	}
	return nil, e.err()
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
	return e.err()
}

// bounds are what the filter takes: starts from low up to, but without, high.
func bounds(f activation.Filter) (low, high uint64) {
	first, end := f.Range()
	return startOf(first), startOf(end)
}
