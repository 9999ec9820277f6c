package redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
)

const conflict, notFound = 0, -1 // what the scripts answer

var documentKeys = []string{docsKey, codeKey, lastKey, changes}

// ARGV: field, revision, body, "keep", "drop" or "set", code
var putScript = redis.NewScript(`
local now = redis.call('HGET', KEYS[1], ARGV[1])
if (now and string.match(now, '^%d+') or '0') ~= ARGV[2] then return 0 end
local new = string.format('%.0f', redis.call('INCR', KEYS[3]))
redis.call('HSET', KEYS[1], ARGV[1], new .. ' ' .. ARGV[3])
if ARGV[4] == 'set' then redis.call('HSET', KEYS[2], ARGV[1], ARGV[5]) end
if ARGV[4] == 'drop' then redis.call('HDEL', KEYS[2], ARGV[1]) end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, new .. '-1', 'field', ARGV[1], 'body', ARGV[3])
return tonumber(new)
`)

// ARGV: field, revision
var deleteScript = redis.NewScript(`
local now = redis.call('HGET', KEYS[1], ARGV[1])
if not now then return -1 end
if string.match(now, '^%d+') ~= ARGV[2] then return 0 end
local new = string.format('%.0f', redis.call('INCR', KEYS[3]))
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, new .. '-1', 'field', ARGV[1])
return tonumber(new)
`)

// change runs a script that changes a document, and returns when the change was seen here.
func (s *Store) change(ctx context.Context, script *redis.Script, args ...any) (revision uint64, err error) {
	answer, err := script.Run(ctx, s.db, documentKeys, args...).Int64()
	switch {
	case err != nil:
		return 0, s.explain(err)
	case answer == conflict:
		return 0, store.ErrConflict
	case answer == notFound:
		return 0, store.ErrNotFound
	}
	return uint64(answer), s.awaitSeen(ctx, uint64(answer))
}

// Put implements store.Entities.
func (s *Store) Put(ctx context.Context, doc store.Doc, code []byte) (revision uint64, err error) {
	if err := doc.Check(); err != nil {
		return 0, err
	}
	what := "set"
	switch {
	case code == nil:
		what = "keep"
	case len(code) == 0:
		what = "drop"
	}
	return s.change(ctx, putScript, field(doc.Key), doc.Revision, doc.Body, what, code)
}

// Delete implements store.Entities.
func (s *Store) Delete(ctx context.Context, key store.Key, revision uint64) error {
	_, err := s.change(ctx, deleteScript, field(key), revision)
	return err
}

// Code implements store.Entities.
func (s *Store) Code(ctx context.Context, key store.Key) ([]byte, error) {
	code, err := s.db.HGet(ctx, codeKey, field(key)).Bytes()
	return code, s.explain(err)
}
