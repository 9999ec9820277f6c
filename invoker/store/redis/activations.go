package redis

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/pending"
)

// KEYS: promise, invokers, promises of the invoker, record. ARGV: invoker, its epoch, id, at, at in
// microseconds, sent, body, namespace
var acceptScript = redis.NewScript(fencing + `
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('EXISTS', KEYS[4]) == 1 then return 1 end
redis.call('HSET', KEYS[1], 'invoker', ARGV[1], 'at', ARGV[4], 'sent', ARGV[6], 'body', ARGV[7],
  'namespace', ARGV[8])
redis.call('ZADD', KEYS[3], ARGV[5], ARGV[3])
if ARGV[2] ~= '0' then redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) end -- or nobody would adopt it
return 1
`)

// KEYS: promise, invokers. ARGV: invoker, its epoch
var sentScript = redis.NewScript(fencing + `
local promise = redis.call('HMGET', KEYS[1], 'sent', 'invoker')
if not promise[1] then return -1 end
if promise[1] == '1' or ARGV[1] ~= '' and ARGV[1] ~= promise[2] then return 0 end
redis.call('HSET', KEYS[1], 'sent', '1')
return 1
`)

// Accept implements store.Activations.
func (s *Store) Accept(ctx context.Context, a store.Accepted) error {
	if err := store.CheckNames(a.ID, a.Invoker); err != nil {
		return err
	}
	keys := []string{promiseKey + a.ID, invokersKey, promisesKey + a.Invoker, recordKey + a.ID}
	at := a.At.Format(time.RFC3339Nano)
	return s.told(acceptScript.Run(ctx, s.db, keys, a.Invoker, s.lease.epoch, a.ID, at,
		a.At.UnixMicro(),
		a.Sent, a.Body, a.Namespace).Int())
}

// Sent implements store.Activations.
func (s *Store) Sent(ctx context.Context, id string) error {
	if s.records.Get(id) != nil {
		return store.ErrNotFound
	}
	keys := []string{promiseKey + id, invokersKey}
	return s.told(sentScript.Run(ctx, s.db, keys, s.lease.name, s.lease.epoch).Int())
}

// Unfinished implements store.Activations.
func (s *Store) Unfinished(ctx context.Context, invoker string) ([]store.Accepted, error) {
	return s.unfinished(ctx, invoker, 0)
}

// unfinished returns the oldest promises, at most most; 0 means all.
func (s *Store) unfinished(
	ctx context.Context, invoker string, most int64,
) ([]store.Accepted, error) {
	answered := s.records.IDs()
	ids, err := s.db.ZRange(ctx, promisesKey+invoker, 0, most-1).Result()
	if err != nil {
		return nil, s.explain(err)
	}
	var list []store.Accepted
	for some := range slices.Chunk(ids, batch) {
		promises, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, id := range some {
				p.HGetAll(ctx, promiseKey+id)
			}
			return nil
		})
		if err != nil {
			return nil, s.explain(err)
		}
		for i, id := range some {
			fields := promises[i].(*redis.MapStringStringCmd).Val()
			if len(fields) == 0 || answered[id] { // the promise was answered meanwhile
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, fields["at"])
			if err != nil {
				return nil, s.explain(err)
			}
			list = append(list, store.Accepted{
				ID: id, Invoker: invoker, Namespace: fields["namespace"], At: at,
				Sent: fields["sent"] == "1", Body: []byte(fields["body"]),
			})
		}
	}
	slices.SortStableFunc(list, func(a, b store.Accepted) int { return a.At.Compare(b.At) })
	return list, nil
}

// Get implements store.Activations.
func (s *Store) Get(ctx context.Context, namespace, id string) ([]byte, error) {
	if r := s.records.Get(id); r != nil {
		if r.Namespace != namespace {
			return nil, store.ErrNotFound
		}
		return r.Append(nil)
	}
	fields, err := s.db.HMGet(ctx, recordKey+id, "namespace", "record").Result()
	if err != nil {
		return nil, s.explain(err)
	}
	body, found := fields[1].(string)
	if !found || fields[0] != namespace {
		return nil, store.ErrNotFound
	}
	return []byte(body), nil
}

// pageScript reads what a list needs for a page in one step, because records come while the page is
// read. It returns for each pending record 1 if it is in Redis by now, else 0; the number of
// records that the filter takes; and the Orders of those that pending.Stored asks for, newest
// first.
//
// KEYS: list, record… ARGV: the first and last Order of the filter, skip, limit
var pageScript = redis.NewScript(`
local list, skip, most = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local come, ahead = {}, 0
for i = 2, #KEYS do
  come[i - 1] = redis.call('EXISTS', KEYS[i])
  ahead = ahead + 1 - come[i - 1]
end
local taken = redis.call('ZLEXCOUNT', list, '[' .. ARGV[1], '(' .. ARGV[2])
local from = math.max(skip - ahead, 0)
most = math.min(skip - from + most, taken - from)
if tonumber(ARGV[4]) == 0 or most <= 0 then return {come, taken, {}} end
from = from + redis.call('ZLEXCOUNT', list, '[' .. ARGV[2], '+')
return {come, taken, redis.call('ZREVRANGE', list, from, from + most - 1)}
`)

// List implements store.Activations.
func (s *Store) List(ctx context.Context, f store.Filter, skip, limit int,
	see func([]byte) error) error {
	onTheWay, _, stored, err := s.page(ctx, f, skip, limit)
	if err != nil {
		return s.explain(err)
	}
	for orders := pending.Page(onTheWay, stored, skip, limit); len(orders) > 0; {
		var some [][]byte
		if some, orders, err = s.portion(ctx, onTheWay, orders); err != nil {
			return s.explain(err)
		}
		for _, body := range some {
			if err := see(body); err != nil {
				return err
			}
		}
	}
	return nil
}

// page returns the pending records that the filter takes, the number of records in Redis that it
// takes, and the Orders that a page needs of those.
func (s *Store) page(ctx context.Context, f store.Filter, skip, limit int) (
	onTheWay map[string]*store.Record, taken int, stored []string, err error) {
	onTheWay = s.records.Matching(f) // first: a record that leaves pending meanwhile is in Redis
	low, high := f.Range()
	orders, keys := slices.Collect(maps.Keys(onTheWay)), []string{listKey(f)}
	for _, order := range orders {
		keys = append(keys, recordKey+onTheWay[order].ID)
	}
	skip, limit = pending.Bounded(skip, limit)
	answer, err := pageScript.Run(ctx, s.db, keys, low, high, skip, limit).Slice()
	if err != nil {
		return nil, 0, nil, err
	}
	for i, come := range answer[0].([]any) {
		if come.(int64) == 1 {
			delete(onTheWay, orders[i])
		}
	}
	for _, order := range answer[2].([]any) {
		stored = append(stored, order.(string))
	}
	return onTheWay, int(answer[1].(int64)), stored, nil
}

// portion reads some of the records with these Orders and returns the rest of the Orders. It leaves
// out records that were dropped meanwhile because they were the oldest.
func (s *Store) portion(ctx context.Context, ahead map[string]*store.Record, orders []string) (
	some [][]byte, left []string, err error) {
	now := orders[:min(batch, len(orders))]
	sizes := make([]*redis.StringCmd, len(now))
	_, err = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, order := range now {
			sizes[i] = p.HGet(ctx, recordKey+order[store.OrderPrefix:], "bytes")
		}
		return nil
	})
	if err != nil && err != redis.Nil {
		return nil, nil, err
	}
	n := 0
	for size := int64(0); n < len(now) && size < store.Portion; n++ {
		bytes, _ := sizes[n].Int64()
		size += bytes
	}
	values := map[string]*redis.StringCmd{}
	_, err = s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, order := range now[:n] {
			if ahead[order] == nil {
				values[order] = p.HGet(ctx, recordKey+order[store.OrderPrefix:], "record")
			}
		}
		return nil
	})
	if err != nil && err != redis.Nil {
		return nil, nil, err
	}
	for _, order := range now[:n] {
		if r := ahead[order]; r != nil {
			if body, refused := r.Append(nil); refused == nil {
				some = append(some, body)
			}
			continue
		}
		body, err := values[order].Bytes()
		if err == redis.Nil {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		some = append(some, body)
	}
	return some, orders[n:], nil
}

// Count implements store.Activations.
func (s *Store) Count(ctx context.Context, f store.Filter) (int, error) {
	onTheWay, taken, _, err := s.page(ctx, f, 0, 0)
	return taken + len(onTheWay), s.explain(err)
}

func listKey(f store.Filter) string {
	if f.Name == "" {
		return recordsKey + ":" + f.Namespace
	}
	return recordsKey + ":" + f.Namespace + "\x00" + f.Name
}
