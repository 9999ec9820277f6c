package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
)

// batch is the number of commands that are sent before their answers are read.
const batch = 256

// dropping is the part of a script that drops a record of a namespace by its Order. Records of a
// former version are in no namespace's account. They are in one list.
const dropping = `
local prefix = ARGV[1]
local all, held, records = prefix .. 'records', prefix .. 'held', prefix .. 'records:'

local function drop(namespace, order)
  local record = prefix .. 'record:' .. string.sub(order, 9)
  local r = redis.call('HMGET', record, 'name', 'bytes')
  local list = records .. namespace
  redis.call('ZREM', list, order)
  local former = redis.call('ZREM', all, order) == 1
  if not r[1] or not r[2] then return end -- it is gone: evicted, or not restored
  redis.call('ZREM', list .. '\0' .. r[1], order)
  redis.call('DEL', record)
  redis.call('DECRBY', prefix .. 'bytes', r[2])
  if not former then redis.call('ZINCRBY', held, '-' .. r[2], namespace) end
  if redis.call('EXISTS', list) == 0 then redis.call('ZREM', held, namespace) end
end
`

// ending is the part that ends a promise. ARGV: prefix, id
const ending = `
local id = ARGV[2]
local promise = ARGV[1] .. 'promise:' .. id
local invoker = redis.call('HGET', promise, 'invoker')
if invoker then
  redis.call('DEL', promise)
  redis.call('ZREM', ARGV[1] .. 'promises:' .. invoker, id)
end
`

// endScript ends the promise of a record that cannot be kept.
var endScript = redis.NewScript(ending)

// finishing ends a promise, adds its record, and drops records when the room is used up: at most
// two, so that a lowered bound is reached step by step. Records of a former version are dropped
// first, then the oldest of the namespace that holds most. Of several records with one id, the
// first one counts.
//
// ARGV: prefix, id, namespace, name in lists, Order, record, its bytes, bytes to retain
var finishScript = redis.NewScript(finishing)

const finishing = dropping + ending + `
local namespace, record = ARGV[3], prefix .. 'record:' .. id
if redis.call('EXISTS', record) == 1 then return end

redis.call('HSET', record, 'namespace', namespace, 'name', ARGV[4], 'bytes', ARGV[7], 'record', ARGV[6])
redis.call('ZADD', records .. namespace, 0, ARGV[5])
redis.call('ZADD', records .. namespace .. '\0' .. ARGV[4], 0, ARGV[5])
redis.call('ZINCRBY', held, ARGV[7], namespace)

local bytes = redis.call('INCRBY', prefix .. 'bytes', ARGV[7])
for _ = 1, 2 do
  if bytes <= tonumber(ARGV[8]) then return end
  local oldest = redis.call('ZRANGE', all, 0, 0)[1]
  local of = oldest and redis.call('HGET', prefix .. 'record:' .. string.sub(oldest, 9), 'namespace')
  if oldest and not of then
    redis.call('ZREM', all, oldest)
  else
    of = of or redis.call('ZREVRANGE', held, 0, 0)[1]
    if not of then -- none is left: the sum is that of records that are gone
      redis.call('SET', prefix .. 'bytes', 0)
      return
    end
    oldest = oldest or redis.call('ZRANGE', records .. of, 0, 0)[1]
    if oldest then drop(of, oldest) else redis.call('ZREM', held, of) end
  end
  bytes = tonumber(redis.call('GET', prefix .. 'bytes'))
end
`

// refuseScript does not refuse a promise that another process has sent or whose record another
// process has made: its caller would get a refusal for an activation that has run. The same record
// again comes from this process.
var refuseScript = redis.NewScript(`
local kept = redis.call('HGET', ARGV[1] .. 'record:' .. ARGV[2], 'record')
local sent = redis.call('HGET', ARGV[1] .. 'promise:' .. ARGV[2], 'sent')
if kept and kept ~= ARGV[6] or sent == '1' then return 0 end
` + finishing)

// forgetScript drops the oldest records of a namespace. ARGV: prefix, namespace, how many
var forgetScript = redis.NewScript(dropping + `
local some = redis.call('ZRANGE', records .. ARGV[2], 0, ARGV[3] - 1)
for _, order in ipairs(some) do drop(ARGV[2], order) end
return #some
`)

// Forget implements store.Activations.
func (s *Store) Forget(ctx context.Context, namespace string) (n int, err error) {
	n = len(s.records.Matching(store.Filter{Namespace: namespace})) // they are still pending
	records, err := forgetScript.Run(ctx, s.db, nil, prefix, namespace, portion).Int()
	if err != nil {
		return 0, s.explain(err)
	}
	promises, err := s.forgetPromises(ctx, namespace)
	return n + records + promises, s.explain(err)
}

// portion is the number of records that one Forget drops: all other clients of Redis wait for that
// long.
const portion = 1000

func (s *Store) forgetPromises(ctx context.Context, namespace string) (n int, err error) {
	each := s.db.Scan(ctx, 0, promiseKey+"*", batch).Iterator()
	for each.Next(ctx) {
		fields, err := s.db.HMGet(ctx, each.Val(), "namespace", "invoker").Result()
		if err != nil {
			return n, err
		}
		of, _ := fields[0].(string)
		invoker, _ := fields[1].(string)
		if of != namespace {
			continue
		}
		_, err = s.db.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			tx.Del(ctx, each.Val())
			tx.ZRem(ctx, promisesKey+invoker, strings.TrimPrefix(each.Val(), promiseKey))
			return nil
		})
		if err != nil {
			return n, err
		}
		n++
	}
	return n, each.Err()
}

// Finish implements store.Activations.
func (s *Store) Finish(r *store.Record) { s.records.Add(r) }

// Refuse implements store.Activations. If Redis does not answer, Refuse asks again until ctx ends.
func (s *Store) Refuse(ctx context.Context, r *store.Record) error {
	arguments, err := s.finishes(r)
	if err != nil {
		return err
	}
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		refused, err := refuseScript.Run(ctx, s.db, nil, arguments...).Int()
		switch {
		case err == redis.Nil: // the promise was refused
			return nil
		case err == nil:
			return s.told(refused, nil)
		case s.ctx.Err() != nil:
			return store.ErrClosed
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.Finish(r)
			return errors.Join(ctx.Err(), s.explain(err))
		}
	}
}

// finishes returns the arguments of finishScript for a record that can be kept.
func (s *Store) finishes(r *store.Record) ([]any, error) {
	body, err := r.Append(nil)
	size := cost(&r.Indexed, len(body))
	return []any{prefix, r.ID, r.Namespace, r.Name, r.Order(), body, size, s.retain}, err
}

// Broken implements store.Store.
func (s *Store) Broken() error {
	if s.lease.replaced.Load() {
		return store.ErrReplaced
	}
	if err := s.lease.failed.Load(); err != nil {
		return *err
	}
	return s.records.Failed()
}

// Lost implements store.Store.
func (s *Store) Lost() uint64 { return s.records.Lost() }

// write sends records until the store is closed, and then the remaining ones.
func (s *Store) write() {
	for {
		select {
		case <-s.wakes:
			s.flush(s.ctx)
		case <-s.ctx.Done():
			ctx, end := context.WithTimeout(context.Background(), 5*time.Second)
			defer end()
			s.flush(ctx)
			return
		}
	}
}

func (s *Store) flush(ctx context.Context) {
	for some := range slices.Chunk(s.records.All(), batch) {
		done, refused, err := s.send(ctx, some)
		if done > 0 || err == nil {
			s.records.Done(done, refused)
		}
		if err != nil {
			s.records.Fail(err)
			return
		}
	}
}

// send writes records in their order, and returns how many of them are done.
func (s *Store) send(ctx context.Context, some []*store.Record) (done, refused int, err error) {
	pipe := s.db.Pipeline()
	// after an Eval, this Redis knows the script, even if it has just started
	run := finishScript.Eval
	for _, r := range some {
		arguments, err := s.finishes(r)
		if err != nil {
			refused++
			endScript.Eval(ctx, pipe, nil, prefix, r.ID)
			continue
		}
		run(ctx, pipe, nil, arguments...)
		run = finishScript.EvalSha
	}
	answers, failed := pipe.Exec(ctx) // failed is the first error, which may hide a worse one
	for _, answer := range answers {
		if err := answer.Err(); err != nil && err != redis.Nil { // Nil: a script returned nothing
			if refused > 0 {
				done = 0 // all are sent again: which of these were refused is not told
			}
			return done, 0, s.explain(err)
		}
		done++
	}
	if failed != nil && failed != redis.Nil { // as where a connection was refused: none was sent
		return 0, 0, s.explain(failed)
	}
	return done, refused, nil
}

// cost returns about how much of Redis's memory a record takes.
func cost(r *store.Indexed, body int) int {
	// a hash of four fields and two entries of sorted sets, or the three of a former version
	const keys = 600
	return body + keys + 5*len(r.ID) + len(r.Namespace) + len(r.Name)
}
