package redis

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/store"
)

// batch is how many commands are sent before their answers are read.
const batch = 256

// What ends a promise and begins a record, and drops the oldest records that there is no room for: two at most, so that a lowered bound
// is reached step by step. The record that came first counts.
//
// ARGV: prefix, id, namespace, name in lists, Order, record, bytes it takes, bytes to retain
var finishScript = redis.NewScript(`
local prefix, id = ARGV[1], ARGV[2]
local promise, record, all = prefix .. 'promise:' .. id, prefix .. 'record:' .. id, prefix .. 'records'
local invoker = redis.call('HGET', promise, 'invoker')
if invoker then
  redis.call('DEL', promise)
  redis.call('ZREM', prefix .. 'promises:' .. invoker, id)
end
if redis.call('EXISTS', record) == 1 then return end

local function lists(namespace, name)
  return {all, all .. ':' .. namespace, all .. ':' .. namespace .. '\0' .. name}
end
redis.call('HSET', record, 'namespace', ARGV[3], 'name', ARGV[4], 'bytes', ARGV[7], 'record', ARGV[6])
for _, list in ipairs(lists(ARGV[3], ARGV[4])) do redis.call('ZADD', list, 0, ARGV[5]) end

local bytes = redis.call('INCRBY', prefix .. 'bytes', ARGV[7])
for _ = 1, 2 do
  if bytes <= tonumber(ARGV[8]) then return end
  local oldest = redis.call('ZRANGE', all, 0, 0)[1]
  if not oldest then return end
  record = prefix .. 'record:' .. string.sub(oldest, 9)
  local r = redis.call('HMGET', record, 'namespace', 'name', 'bytes')
  for _, list in ipairs(lists(r[1], r[2])) do redis.call('ZREM', list, oldest) end
  redis.call('DEL', record)
  bytes = redis.call('DECRBY', prefix .. 'bytes', r[3])
end
`)

// Finish implements store.Activations.
func (s *Store) Finish(r *activation.Record) { s.records.Add(r) }

// Lost implements store.Store.
func (s *Store) Lost() uint64 { return s.records.Lost() }

// write sends records until the store is closed, and then what is left.
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

// send writes records in their order, and tells how many of them are done with.
func (s *Store) send(ctx context.Context, some []*activation.Record) (done, refused int, err error) {
	pipe := s.db.Pipeline()
	run := finishScript.Eval // after it, this Redis knows the script, even one that has just started
	for _, r := range some {
		value, err := r.MarshalBinary()
		if err != nil || store.CheckNames(r.ID, r.Namespace, r.ListName()) != nil {
			refused++
			continue
		}
		run(ctx, pipe, nil, prefix, r.ID, r.Namespace, r.ListName(), r.Order(), value, cost(r, value), s.retain)
		run = finishScript.EvalSha
	}
	answers, err := pipe.Exec(ctx)
	if err == nil || err == redis.Nil {
		return len(some), refused, nil
	}
	if refused == 0 {
		for done < len(answers) && (answers[done].Err() == nil || answers[done].Err() == redis.Nil) {
			done++
		}
	}
	return done, 0, s.explain(err)
}

// cost is about what a record takes in Redis's memory.
func cost(r *activation.Record, value []byte) int {
	const keys = 600 // a hash of four fields and three entries of sorted sets
	return len(value) + keys + 5*len(r.ID) + len(r.Namespace) + len(r.ListName())
}
