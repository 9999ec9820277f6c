package embedded

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"go.etcd.io/bbolt"

	"github.com/fastiov/fastiov/invoker/store"
)

// A block holds records that came one after another. It is one entry of the file, since an entry
// costs more than the record in it. The last block takes records until it has blockSize bytes. The
// blocks before it only lose records, all of one namespace at a time.
//
// The table names each record's Order and length. It lies beside the records in a bucket of the
// block's own, so that a change of a neighbour does not copy it. The heads of all blocks lie
// together: a search reads them from the newest on, and opens the few blocks that may contain what
// it looks for.
type block struct {
	key []byte // its number
	head
	table   []byte // of each record: the index of its name, its length, its Order
	records []byte
}

const blockSize = 32 << 10

// room returns empty buffers for a block's table and records, as large as the block will probably
// need.
func room() (table, records []byte) {
	return make([]byte, 0, blockSize/4), make([]byte, 0, blockSize*9/8)
}

// A head bounds the starts and ids in its block, and the highest ones in all blocks before it.
// Starts and ids rise roughly from block to block, so a search seldom reads more blocks than it
// must.
type head struct {
	oldest, newest, newestBefore   uint64 // starts, as in an Order
	lowest, highest, highestBefore []byte // ids
	names                          []tally
}

// A tally counts the records of one name in a block.
type tally struct {
	namespace, name []byte
	count           uint64
}

func (h *head) encode() (b []byte) {
	for _, start := range []uint64{h.oldest, h.newest, h.newestBefore} {
		b = binary.AppendUvarint(b, start)
	}
	for _, id := range [][]byte{h.lowest, h.highest, h.highestBefore} {
		b = appendText(b, id)
	}
	for _, t := range h.names {
		b = binary.AppendUvarint(appendText(appendText(b, t.namespace), t.name), t.count)
	}
	return b
}

// decode reads a head. Its texts share memory with value.
func (h *head) decode(value []byte) error {
	r := reader{rest: value}
	h.oldest, h.newest, h.newestBefore = r.number(), r.number(), r.number()
	h.lowest, h.highest, h.highestBefore = r.text(), r.text(), r.text()
	h.names = h.names[:0]
	for len(r.rest) > 0 {
		h.names = append(h.names, tally{r.text(), r.text(), r.number()})
	}
	return r.err()
}

// index returns the index of the name in names, and adds the name if it is new.
func (h *head) index(namespace, name string) int {
	for i, t := range h.names {
		if string(t.name) == name && string(t.namespace) == namespace {
			return i
		}
	}
	h.names = append(h.names, tally{namespace: []byte(namespace), name: []byte(name)})
	return len(h.names) - 1
}

func (t *tally) isOf(f *store.Filter) bool {
	return string(t.namespace) == f.Namespace && (f.Name == "" || string(t.name) == f.Name)
}

// add puts a record at the end, unless no store can keep it.
func (b *block) add(r *store.Record) error {
	records, err := r.Append(b.records)
	if err != nil {
		return err
	}
	size := len(records) - len(b.records)
	b.records = records
	b.enter(b.index(r.Namespace, r.Name), []byte(r.Order()), size)
	return nil
}

// enter adds the last record to the head and the table: its name, Order and size.
func (b *block) enter(name int, order []byte, size int) {
	id, start := order[store.OrderPrefix:], startOf(order)
	if b.empty() {
		b.oldest, b.newest, b.lowest, b.highest = start, start, id, id
	}
	b.oldest, b.newest = min(b.oldest, start), max(b.newest, start)
	if b.highest = later(b.highest, id); bytes.Compare(id, b.lowest) < 0 {
		b.lowest = id
	}
	b.names[name].count++
	b.table = binary.AppendUvarint(binary.AppendUvarint(b.table, uint64(name)), uint64(size))
	b.table = appendText(b.table, order)
}

// take appends the records of another block, except those of the names marked in out.
func (b *block) take(from *block, out []bool) error {
	names := make([]int, len(from.names))
	for i, t := range from.names {
		if !out[i] {
			names[i] = b.index(string(t.namespace), string(t.name))
		}
	}
	e := from.entries()
	for e.next() {
		if e.name >= uint64(len(out)) {
			return errDamaged
		}
		if !out[e.name] {
			b.records = append(b.records, e.value...)
			b.enter(names[e.name], e.order, len(e.value))
		}
	}
	return e.err()
}

// sizes returns the bytes of each name's records, as shares counts them.
func (b *block) sizes() ([]int64, error) {
	sizes := make([]int64, len(b.names))
	e := b.entries()
	for e.next() {
		if e.name >= uint64(len(sizes)) {
			return nil, errDamaged
		}
		sizes[e.name] += int64(len(e.order) + len(e.value))
	}
	return sizes, e.err()
}

// empty reports whether the block has no records. An empty block is not kept.
func (b *block) empty() bool { return len(b.table) == 0 }

func (b *block) full() bool { return len(b.records) >= blockSize }

// cost returns about how many bytes the block takes in the file.
func (b *block) cost() int64 {
	const heads = 512 // its own head and those of bbolt
	if b.empty() {
		return 0
	}
	return int64(len(b.table) + len(b.records) + heads)
}

// next returns an empty block that follows this one.
func (b *block) next() *block {
	before := head{
		newestBefore:  max(b.newest, b.newestBefore),
		highestBefore: later(b.highest, b.highestBefore),
	}
	n := &block{key: keyOf(numberOf(b.key) + 1), head: before}
	n.table, n.records = room()
	return n
}

// lastBlock returns a copy of the block that takes the next record. It shares no memory with the
// file's pages.
func lastBlock(tx *bbolt.Tx) (*block, error) {
	key, value := tx.Bucket(heads).Cursor().Last()
	if key == nil {
		return &block{key: keyOf(0)}, nil
	}
	b := &block{key: bytes.Clone(key)}
	err := cmp.Or(b.decode(bytes.Clone(value)), b.open(tx))
	table, records := room()
	b.table, b.records = append(table, b.table...), append(records, b.records...)
	return b, err
}

// open reads the table and the records of the block with its key.
func (b *block) open(tx *bbolt.Tx) error {
	inside := tx.Bucket(blocks).Bucket(b.key)
	if inside == nil {
		return errDamaged
	}
	b.table, b.records = inside.Get(tableKey), inside.Get(recordsKey)
	return nil
}

// drop removes the block from the file.
func (b *block) drop(tx *bbolt.Tx) error {
	return cmp.Or(tx.Bucket(blocks).DeleteBucket(b.key), tx.Bucket(heads).Delete(b.key))
}

func (b *block) put(tx *bbolt.Tx) error {
	if b.empty() {
		return nil
	}
	inside, err := tx.Bucket(blocks).CreateBucketIfNotExists(b.key)
	if err != nil {
		return err
	}
	return cmp.Or(inside.Put(tableKey, b.table), inside.Put(recordsKey, b.records),
		tx.Bucket(heads).Put(b.key, b.encode()))
}

// entries iterates over a block's table.
type entries struct {
	reader
	name  uint64
	order []byte
	value []byte // the record
	after []byte // the records that follow
}

func (b *block) entries() entries {
	return entries{reader: reader{rest: b.table}, after: b.records}
}

func (e *entries) next() bool {
	if len(e.rest) == 0 {
		return false
	}
	name, size := e.number(), e.number()
	order := e.text()
	if len(order) <= store.OrderPrefix || size > uint64(len(e.after)) {
		e.bad = true
	}
	if e.bad {
		return false
	}
	e.name, e.order, e.value, e.after = name, order, e.after[:size], e.after[size:]
	return true
}

func startOf[T string | []byte](order T) uint64 {
	return binary.BigEndian.Uint64([]byte(order[:store.OrderPrefix]))
}

func keyOf(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

func numberOf(key []byte) uint64 { return binary.BigEndian.Uint64(key) }

func later(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return b
	}
	return a
}

// A reader takes numbers and strings from the front of rest. After the first malformed one it
// returns zero values.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) err() error {
	if r.bad {
		return errDamaged
	}
	return nil
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.rest, r.bad = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() []byte {
	size := r.number()
	if size > uint64(len(r.rest)) {
		r.rest, r.bad = nil, true
		return nil
	}
	text := r.rest[:size:size]
	r.rest = r.rest[size:]
	return text
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
