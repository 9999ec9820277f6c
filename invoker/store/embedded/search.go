package embedded

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// walk calls see with the blocks, newest first, until more is false. The blocks are not opened yet.
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

// find returns the record of that id as it lies in the file, and its namespace, or nil. It starts
// at the first block that may contain the id, since all earlier blocks hold lower ids only. If ids
// rise with time, as those of NewID do, the record is near that block.
func find(tx *bbolt.Tx, id string) (record, namespace []byte, err error) {
	c := tx.Bucket(heads).Cursor()
	first, _ := c.First()
	last, value := c.Last()
	if last == nil {
		return nil, nil, nil
	}
	var b block
	if err := b.decode(value); err != nil ||
		id > string(b.highest) && id > string(b.highestBefore) {
		return nil, nil, err
	}
	seek := func(back int) (key, value []byte) {
		return c.Seek(keyOf(numberOf(last) - uint64(back)))
	}
	back := sort.Search(int(numberOf(last)-numberOf(first)), func(back int) bool {
		_, value := seek(back)
		err = cmp.Or(err, b.decode(value))
		return string(b.highestBefore) < id
	})
	for key, value := seek(back); key != nil && record == nil && err == nil; key, value = c.Next() {
		b.key = key
		if err = b.decode(value); err == nil && string(b.lowest) <= id && id <= string(b.highest) {
			record, namespace, err = b.find(tx, id)
		}
	}
	return record, namespace, err
}

func (b *block) find(tx *bbolt.Tx, id string) (record, namespace []byte, err error) {
	if err := b.open(tx); err != nil {
		return nil, nil, err
	}
	e := b.entries()
	for e.next() {
		if string(e.order[store.OrderPrefix:]) != id {
			continue
		}
		if e.name >= uint64(len(b.names)) {
			return nil, nil, errDamaged
		}
		return e.value, b.names[e.name].namespace, nil
	}
	return nil, nil, e.err()
}

// page returns the Orders of the most newest records that the filter takes, without the first skip.
func page(tx *bbolt.Tx, f store.Filter, skip, most int) (orders []string, err error) {
	low, high := bounds(f)
	if skip > fewSkipped && low < high {
		var skipped int
		if skipped, high, err = leap(tx, &f, low, high, skip); err != nil {
			return nil, err
		}
		skip -= skipped
	}
	if most == 0 || low >= high {
		return nil, nil
	}
	most += skip
	err = walk(tx, func(b *block) (bool, error) {
		if b.newest < low || b.oldest >= high {
			return b.newestBefore >= low, nil
		}
		err := b.matching(tx, &f, low, high,
			func(e *entries) { orders = append(orders, string(e.order)) })
		if len(orders) >= most {
			slices.SortFunc(orders, func(a, b string) int { return strings.Compare(b, a) })
			orders = orders[:most]
			low = startOf(orders[most-1])
		}
		return b.newestBefore >= low, err
	})
	slices.SortFunc(orders, func(a, b string) int { return strings.Compare(b, a) })
	return orders[min(skip, len(orders)):], err
}

// Up to fewSkipped records are collected and left out; of more records, most are only counted.
var fewSkipped = 1000

// A span bounds the records of a block that a filter may take, as far as the block's head shows.
type span struct {
	key            []byte
	oldest, newest uint64
	count          int
}

// leap uses the tallies of the blocks to count records that are to be skipped. At most skip records
// started at end or later, and more than skip at any time before end. If all records are to be
// skipped, end is low.
func leap(
	tx *bbolt.Tx, f *store.Filter, low, high uint64, skip int,
) (skipped int, end uint64, err error) {
	var spans []span
	first, last := uint64(math.MaxUint64-1), uint64(0)
	err = walk(tx, func(b *block) (bool, error) {
		s := span{key: b.key, oldest: b.oldest, newest: b.newest}
		for _, t := range b.names {
			if t.isOf(f) {
				s.count += int(t.count)
			}
		}
		if s.count > 0 && s.newest >= low && s.oldest < high {
			spans = append(spans, s)
			first, last = min(first, s.oldest), max(last, s.newest)
		}
		return b.newestBefore >= low, nil
	})
	if len(spans) == 0 || err != nil {
		return 0, low, err
	}
	low, high = max(low, first), min(high, last+1)
	from := func(start uint64) (n int) {
		for _, s := range spans {
			switch {
			case s.newest < start || err != nil:
			case s.oldest >= start && s.newest < high:
				n += s.count
			default:
				var some int
				some, err = within(tx, f, s.key, start, high)
				n += some
			}
		}
		return n
	}
	back := sort.Search(int(high-low),
		func(back int) bool { return from(high-1-uint64(back)) > skip })
	end = high - uint64(back)
	return from(end), end, err
}

// within counts the records of a block that the filter takes.
func within(tx *bbolt.Tx, f *store.Filter, key []byte, low, high uint64) (n int, err error) {
	b := block{key: key}
	if err := b.decode(tx.Bucket(heads).Get(key)); err != nil {
		return 0, err
	}
	err = b.matching(tx, f, low, high, func(*entries) { n++ })
	return n, err
}

// count returns how many records the filter takes.
func count(tx *bbolt.Tx, f store.Filter) (n int, err error) {
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

// matching calls see with the records that the filter takes and that started from low up to high,
// without high.
func (b *block) matching(
	tx *bbolt.Tx, f *store.Filter, low, high uint64, see func(*entries),
) error {
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
		if start := startOf(e.order); taken[e.name] && low <= start && start < high {
			see(&e)
		}
	}
	return e.err()
}

// bounds returns the starts that the filter takes: from low up to high, without high.
func bounds(f store.Filter) (low, high uint64) {
	first, end := f.Range()
	return startOf(first), startOf(end)
}
