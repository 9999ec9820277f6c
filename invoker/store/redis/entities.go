package redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
)

var documentKeys = []string{docsKey, codeKey, lastKey, changes, usedKey}

// The scripts return one of these or the new revision. full is followed by the part that is full,
// and by how much the namespace takes.
const conflict, notFound, full = 0, -1, -2

// changing is the part of a script that changes documents. A script that changes a document first
// makes sure that the counts in used are right. A former version changes documents without updating
// used; the revision in used shows that, and then all documents are counted again.
//
// An entry of the stream names the document and its previous revision; the body is in docs. A
// former version expects entries with a body, each one revision above the last. It takes a step of
// two for a gap, and reads all documents again.
const changing = `
local docs, code, last, changes, used = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local parts = {'entities', 'documents', 'code'}

local function takes(field)
  local value = redis.call('HGET', docs, field)
  if not value then return {0, 0, 0} end
  return {1, #value - string.find(value, ' ', 1, true), redis.call('HSTRLEN', code, field)}
end

local function grow(field, before, after)
  local namespace = string.match(field, '^%Z*%z(%Z*)')
  for i, part in ipairs(parts) do
    local more = after[i] - before[i]
    if more ~= 0 then
      redis.call('HINCRBY', used, part .. '\0' .. namespace, string.format('%.0f', more))
    end
  end
end

local before = redis.call('GET', last) or '0'
if redis.call('HGET', used, 'revision') ~= before then
  redis.call('DEL', used)
  for _, field in ipairs(redis.call('HKEYS', docs)) do grow(field, {0, 0, 0}, takes(field)) end
  redis.call('HSET', used, 'revision', before)
end

local function changed(field)
  redis.call('HSET', used, 'revision', redis.call('GET', last))
  redis.call('XADD', changes, 'MAXLEN', '~', 1000, redis.call('GET', last) .. '-1',
    'field', field, 'after', before)
end
`

// ARGV: field, namespace, revision, body, "keep", "drop" or "set", code, and the most of each part
var putScript = redis.NewScript(changing + `
local field = ARGV[1]
local now = redis.call('HGET', docs, field)
if (now and string.match(now, '^%d+') or '0') ~= ARGV[3] then return {0} end

local old = takes(field)
local new = {1, #ARGV[4], ARGV[5] == 'keep' and old[3] or #ARGV[6]}
for i, part in ipairs(parts) do
  local all = tonumber(redis.call('HGET', used, part .. '\0' .. ARGV[2]) or 0) + new[i] - old[i]
  local most = tonumber(ARGV[6 + i])
  if most > 0 and all > most and new[i] > old[i] then return {-2, i, all} end
end
grow(field, old, new)

local revision = string.format('%.0f', redis.call('INCRBY', last, 2))
redis.call('HSET', docs, field, revision .. ' ' .. ARGV[4])
if ARGV[5] == 'set' then redis.call('HSET', code, field, ARGV[6]) end
if ARGV[5] == 'drop' then redis.call('HDEL', code, field) end
changed(field)
return {tonumber(revision)}
`)

// ARGV: field, revision
var deleteScript = redis.NewScript(changing + `
local field = ARGV[1]
local now = redis.call('HGET', docs, field)
if not now then return {-1} end
if string.match(now, '^%d+') ~= ARGV[2] then return {0} end

grow(field, takes(field), {0, 0, 0})
local revision = redis.call('INCRBY', last, 2)
redis.call('HDEL', docs, field)
redis.call('HDEL', code, field)
changed(field)
return {revision}
`)

// ARGV: namespace
var usedScript = redis.NewScript(changing + `
local answer = {}
for i, part in ipairs(parts) do
  answer[i] = tonumber(redis.call('HGET', used, part .. '\0' .. ARGV[1]) or 0)
end
return answer
`)

// change runs a script that changes a document, and returns when this invoker's watcher has seen
// the change.
func (s *Store) change(
	ctx context.Context, script *redis.Script, args ...any,
) (answer []int64, err error) {
	answer, err = script.Run(ctx, s.db, documentKeys, args...).Int64Slice()
	switch {
	case err != nil:
		return nil, s.explain(err)
	case answer[0] == conflict:
		return nil, store.ErrConflict
	case answer[0] == notFound:
		return nil, store.ErrNotFound
	case answer[0] == full:
		return answer, nil
	}
	return answer, s.awaitSeen(ctx, uint64(answer[0]))
}

// Put implements store.Entities.
func (s *Store) Put(
	ctx context.Context, doc store.Doc, code []byte, most store.Space,
) (revision uint64, err error) {
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
	answer, err := s.change(ctx, putScript, field(doc.Key), doc.Namespace, doc.Revision,
		doc.Body, what, code,
		most.Entities, most.Documents, most.Code)
	if err != nil {
		return 0, err
	}
	if answer[0] == full {
		part := answer[1] - 1
		return 0, &store.Full{
			What: []string{store.ManyEntities, store.LargeEntities, store.MuchCode}[part],
			Then: answer[2],
			Most: []int64{most.Entities, most.Documents, most.Code}[part],
		}
	}
	return uint64(answer[0]), nil
}

// Delete implements store.Entities.
func (s *Store) Delete(ctx context.Context, key store.Key, revision uint64) error {
	_, err := s.change(ctx, deleteScript, field(key), revision)
	return err
}

// Used implements store.Entities.
func (s *Store) Used(ctx context.Context, namespace string) (store.Space, error) {
	answer, err := usedScript.Run(ctx, s.db, documentKeys, namespace).Int64Slice()
	if err != nil {
		return store.Space{}, s.explain(err)
	}
	return store.Space{Entities: answer[0], Documents: answer[1], Code: answer[2]}, nil
}

// Code implements store.Entities.
func (s *Store) Code(ctx context.Context, key store.Key) ([]byte, error) {
	code, err := s.db.HGet(ctx, codeKey, field(key)).Bytes()
	return code, s.explain(err)
}
