package embedded

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/whole"
)

// format is the version of the layout below. A file of another version is left untouched.
const format = 2

// The buckets. NUMBER counts blocks upwards; 0 is a zero byte.
var (
	meta = []byte("meta") // "format" → number; "record bytes" → number
	docs = []byte("docs") // kind 0 namespace 0 name → revision, body
	// kind 0 namespace 0 name → a bucket of its own, so that a change of a neighbour does not copy
	// it
	code     = []byte("code")
	promises = []byte("promises") // id → see encodePromise
	heads    = []byte("heads")    // NUMBER → head of the block
	blocks   = []byte("blocks")   // NUMBER → "table" → its table; "records" → its records

	buckets = [][]byte{meta, docs, code, promises, heads, blocks}

	formatKey  = []byte("format")
	bytesKey   = []byte("record bytes")
	codeKey    = []byte("code")
	tableKey   = []byte("table")
	recordsKey = []byte("records")
)

func docKey(k store.Key) []byte {
	return []byte(strings.Join([]string{string(k.Kind), k.Namespace, k.Name}, "\x00"))
}

func parseDocKey(key []byte) (store.Key, error) {
	parts := strings.Split(string(key), "\x00")
	if len(parts) != 3 {
		return store.Key{}, fmt.Errorf("the key %q is not a document's", key)
	}
	return store.Key{Kind: store.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}, nil
}

func number(b *bbolt.Bucket, key []byte) int64 {
	if value := b.Get(key); len(value) == 8 {
		return int64(binary.BigEndian.Uint64(value))
	}
	return 0
}

func putNumber(b *bbolt.Bucket, key []byte, n int64) error {
	return b.Put(key, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// openFile opens a file of our format, or makes one.
func openFile(path string) (*bbolt.DB, error) {
	_, err := os.Stat(path)
	isNew := errors.Is(err, os.ErrNotExist)
	db, err := tryOpen(path)
	if err == nil {
		return db, nil
	}
	if isNew {
		_ = os.Remove(path) // half a file would look like a damaged one
	}
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf(
			"store %s is in use by another process; end that one, or name another file", path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum),
		errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, errDamaged):
		return nil, fmt.Errorf(
			"store %s is damaged or not a store (%w); restore it from a copy, or move it away to begin with an empty one",
			path, err)
	default:
		return nil, fmt.Errorf("store: %w", err)
	}
}

var errDamaged = errors.New("its pages make no sense")

// tryOpen reads the file before it opens it for writing, so that a file of another program stays
// unchanged.
func tryOpen(path string) (*bbolt.DB, error) {
	options := bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType}
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		reading := options
		reading.ReadOnly = true
		db, err := openAnd(path, &reading, func(db *bbolt.DB) error {
			return db.View(func(tx *bbolt.Tx) error { return check(tx, path) })
		})
		if err != nil {
			return nil, err
		}
		if err := db.Close(); err != nil {
			return nil, err
		}
	}
	return openAnd(path, &options, func(db *bbolt.DB) error {
		return cmp.Or(os.Chmod(path, 0o600), db.Update(prepare), whole.SyncDir(filepath.Dir(path)))
	})
}

func openAnd(
	path string, options *bbolt.Options, do func(*bbolt.DB) error,
) (db *bbolt.DB, err error) {
	defer func() {
		if reason := recover(); reason != nil { // bbolt panics on a page that is not one of its own
			err = fmt.Errorf("%w: %.80s", errDamaged,
				strings.ReplaceAll(fmt.Sprint(reason), "\n", " "))
		}
		if err != nil && db != nil {
			_ = db.Close()
			db = nil
		}
	}()
	if db, err = bbolt.Open(path, 0o600, options); err != nil {
		return nil, err
	}
	return db, do(db)
}

// check checks what can be checked without reading everything.
func check(tx *bbolt.Tx, path string) error {
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	if file.Size() < tx.Size() {
		return fmt.Errorf("%w: it ends after %d of %d bytes", errDamaged, file.Size(), tx.Size())
	}
	b := tx.Bucket(meta)
	if b == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return fmt.Errorf("%w: it begins with %.20q", errDamaged, name)
		}
		return nil
	}
	if found := number(b, formatKey); found != format {
		return fmt.Errorf(
			"%s has format %d, this version reads %d; use the fastiov that wrote it, or another file",
			path, found, format)
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: %q is missing", errDamaged, name)
		}
	}
	var h head
	return cmp.Or(
		tx.Bucket(docs).ForEach(func(key, value []byte) error {
			_, err := parseDoc(key, value)
			return err
		}),
		tx.Bucket(heads).ForEach(func(key, value []byte) error {
			if len(key) != len(keyOf(0)) {
				return errDamaged
			}
			return h.decode(value)
		}))
}

// prepare gives an empty file our format.
func prepare(tx *bbolt.Tx) error {
	if tx.Bucket(meta) != nil {
		return nil
	}
	for _, name := range buckets {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return putNumber(tx.Bucket(meta), formatKey, format)
}

// parseDoc reads a document as it lies in docs.
func parseDoc(key, value []byte) (store.Doc, error) {
	k, err := parseDocKey(key)
	if err != nil || len(value) < 8 {
		return store.Doc{}, errors.Join(errDamaged, err)
	}
	body := bytes.Clone(value[8:])
	if body == nil {
		body = []byte{}
	}
	return store.Doc{Key: k, Revision: binary.BigEndian.Uint64(value), Body: body}, nil
}
