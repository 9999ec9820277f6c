package embedded

import (
	"bytes"
	"cmp"
	"container/heap"
	"errors"
	"slices"

	"go.etcd.io/bbolt"
)

// When the room for records is used up, the namespaces that hold more than the average lose
// records, each its oldest first. So a namespace keeps what fits in an equal share, however much
// others call, and a single namespace has all the room. Only the blocks before the last one lose
// records, so only these are counted.
//
// A block that lost some of its records stays in its place, so that ids and starts still rise from
// block to block. Small neighbouring blocks are joined.
type shares struct {
	by      map[string]*share
	loudest byBytes
	bytes   int64 // of all namespaces
}

// A share counts the records of one namespace.
type share struct {
	namespace string
	bytes     int64
	blocks    []uint64 // the numbers of its blocks
	place     int      // its index in byBytes
}

// byBytes is a heap; the namespace that holds most is at the top.
type byBytes []*share

func (h byBytes) Len() int           { return len(h) }
func (h byBytes) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h byBytes) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *byBytes) Push(s any) {
	s.(*share).place = len(*h)
	*h = append(*h, s.(*share))
}

func (h *byBytes) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	*h = (*h)[:last]
	return s
}

// countShares counts what every namespace holds.
func countShares(tx *bbolt.Tx) (*shares, error) {
	s := &shares{by: map[string]*share{}}
	last, _ := tx.Bucket(heads).Cursor().Last()
	var b block
	err := tx.Bucket(heads).ForEach(func(key, value []byte) error {
		if b.key = key; bytes.Equal(key, last) {
			return nil
		}
		err := cmp.Or(b.decode(value), b.open(tx), s.add(&b))
		if errors.Is(err, errDamaged) {
			err = nil // a damaged block keeps what it has
		}
		return err
	})
	return s, err
}

// add adds the bytes of a full block's records to the shares of their namespaces.
func (s *shares) add(b *block) error {
	sizes, err := b.sizes()
	if err != nil {
		return err
	}
	for i, size := range sizes {
		s.grow(b.names[i].namespace, numberOf(b.key), size)
	}
	return nil
}

func (s *shares) grow(namespace []byte, number uint64, bytes int64) {
	of := s.by[string(namespace)]
	if of == nil {
		of = &share{namespace: string(namespace)}
		s.by[of.namespace] = of
		heap.Push(&s.loudest, of)
	}
	if n := len(of.blocks); n == 0 || of.blocks[n-1] != number {
		of.blocks = append(of.blocks, number)
	}
	of.bytes += bytes
	s.bytes += bytes
	heap.Fix(&s.loudest, of.place)
}

// shrink subtracts a block's bytes from a namespace.
func (s *shares) shrink(namespace []byte, number uint64, bytes int64) {
	of := s.by[string(namespace)]
	if i, found := slices.BinarySearch(of.blocks, number); found && i == 0 {
		of.blocks = of.blocks[1:]
	} else if found {
		of.blocks = slices.Delete(of.blocks, i, i+1)
	}
	of.bytes -= bytes
	s.bytes -= bytes
	if heap.Fix(&s.loudest, of.place); of.bytes == 0 {
		heap.Remove(&s.loudest, of.place)
		delete(s.by, of.namespace)
	}
}

// move records that what a namespace had in one block is now in the next one.
func (s *shares) move(namespace []byte, from, to uint64) {
	of := s.by[string(namespace)]
	i, found := slices.BinarySearch(of.blocks, from)
	switch {
	case !found: // the block has no record of this namespace
	case i+1 < len(of.blocks) && of.blocks[i+1] == to:
		of.blocks = slices.Delete(of.blocks, i, i+1)
	default:
		of.blocks[i] = to
	}
}

// lose drops records until excess bytes are free, in at most steps steps. So a lowered bound is
// reached gradually, and no caller waits for it.
func (s *shares) lose(tx *bbolt.Tx, excess int64, steps int) (freed int64, err error) {
	for ; freed < excess && steps > 0 && len(s.loudest) > 0; steps-- {
		number, average := s.loudest[0].blocks[0], s.bytes/int64(len(s.loudest))
		_, space, err := s.sift(tx, number, func(namespace string) bool {
			of := s.by[namespace]
			return of.bytes >= average && of.blocks[0] == number
		})
		if err != nil {
			return 0, err
		}
		freed += space
	}
	return freed, nil
}

// sift drops the records of some namespaces from a block, and returns how many they were and how
// much space they free.
func (s *shares) sift(
	tx *bbolt.Tx, number uint64, loses func(string) bool,
) (n int, freed int64, err error) {
	b := block{key: keyOf(number)}
	if err := cmp.Or(b.decode(bytes.Clone(tx.Bucket(heads).Get(b.key))), b.open(tx)); err != nil {
		return 0, 0, err
	}
	sizes, err := b.sizes()
	if err != nil {
		return 0, 0, err
	}
	out, left := make([]bool, len(b.names)), 0
	for i, t := range b.names {
		if out[i] = loses(string(t.namespace)); out[i] {
			n += int(t.count)
		} else {
			left += int(sizes[i])
		}
	}
	for i, t := range b.names {
		if out[i] {
			s.shrink(t.namespace, number, sizes[i])
		}
	}
	if left == 0 {
		return n, b.cost(), b.drop(tx)
	}
	rest := b.alike(left)
	if err := rest.take(&b, out); err != nil {
		return 0, 0, err
	}
	freed = b.cost() - rest.cost()
	space, err := s.join(tx, &rest)
	return n, freed + space, cmp.Or(err, rest.put(tx))
}

// alike returns an empty block that replaces this one, with room for records of size bytes.
func (b *block) alike(size int) block {
	before := head{newestBefore: b.newestBefore, highestBefore: b.highestBefore}
	return block{key: b.key, head: before, records: make([]byte, 0, size)}
}

// join puts the preceding block in front of this one, if that block is small and readable, and
// returns how much space that frees.
func (s *shares) join(tx *bbolt.Tx, b *block) (freed int64, err error) {
	c := tx.Bucket(heads).Cursor()
	c.Seek(b.key)
	key, value := c.Prev()
	if key == nil {
		return 0, nil
	}
	before := block{key: bytes.Clone(key)}
	if err := cmp.Or(before.decode(bytes.Clone(value)), before.open(tx)); err != nil {
		return 0, nil
	}
	size := len(before.records) + len(b.records)
	if len(before.records) > blockSize/4 || size > blockSize {
		return 0, nil
	}
	both := before.alike(size)
	both.key = b.key
	for _, part := range []*block{&before, b} {
		if both.take(part, make([]bool, len(part.names))) != nil {
			return 0, nil
		}
	}
	for _, t := range before.names {
		s.move(t.namespace, numberOf(before.key), numberOf(b.key))
	}
	freed = before.cost() + b.cost() - both.cost()
	*b = both
	return freed, before.drop(tx)
}
