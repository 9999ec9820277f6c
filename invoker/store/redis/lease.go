package redis

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
)

// A lease is a process's claim to its invoker's name. A process that starts under a name gets a
// higher epoch than the process before, which is fenced from then on: Redis refuses its promises. A
// process renews its lease while it lives. If a name has no lease, other invokers adopt its
// promises.
//
// A lease that expires does not fence its process. Redis may have stalled, or its clock may have
// been set: then the process renews the lease. So other invokers wait for a renewal, by their own
// clocks, before they adopt.
type lease struct {
	name     string // empty: this process took no name, and may use any
	epoch    int64
	replaced atomic.Bool
	failed   atomic.Pointer[error] // why the lease could not be renewed; nil: it was

	renewEvery time.Duration

	adopting sync.Mutex
	// how long a name must have no lease before its promises are adopted
	missFor time.Duration
	missed  map[string]time.Time // names without a lease, and since when they have none
	// the name whose promises may have been moved to this one; empty: none
	from   string
	moving []store.Accepted // the promises that may have been moved
}

const (
	leaseFor   = 20 * time.Second
	renewEvery = 4 * time.Second
	missFor    = 10 * time.Second
)

// fencing is the part of a script that refuses a replaced process. KEYS: _, invokers. ARGV: its
// invoker, its epoch
const fencing = `
if (tonumber(redis.call('HGET', KEYS[2], ARGV[1])) or 0) > tonumber(ARGV[2]) then return -2 end
`

// takeScript gives out an epoch that is higher than all before. It begins with the time, so this
// also holds after Redis has forgotten the earlier epochs.
//
// KEYS: lease, invokers. ARGV: invoker, milliseconds until the lease expires
var takeScript = redis.NewScript(`
local time = redis.call('TIME')
local epoch = tonumber(redis.call('HGET', KEYS[2], ARGV[1])) or 0
epoch = math.max(epoch + 1, time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', epoch))
redis.call('SET', KEYS[1], string.format('%.0f', epoch), 'PX', ARGV[2])
return epoch
`)

// KEYS: lease, invokers. ARGV: invoker, its epoch, milliseconds
var renewScript = redis.NewScript(fencing + `
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
`)

// KEYS: lease. ARGV: epoch
var giveUpScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
`)

// moveScript moves promises to another invoker if their own has no lease, and returns the promises
// that are now the other one's. It forgets a name without promises.
//
// KEYS: lease of the former owner, invokers. ARGV: the new owner, its epoch, prefix, the former
// owner, ids…
var moveScript = redis.NewScript(fencing + `
local to, prefix, from = ARGV[1], ARGV[3], ARGV[4]
local theirs, ours = prefix .. 'promises:' .. from, prefix .. 'promises:' .. to
local gone = redis.call('EXISTS', KEYS[1]) == 0
local moved = {}
for i = 5, #ARGV do
  local promise = prefix .. 'promise:' .. ARGV[i]
  local owner = redis.call('HGET', promise, 'invoker')
  if gone and owner == from then
    redis.call('HSET', promise, 'invoker', to)
    redis.call('ZADD', ours, redis.call('ZSCORE', theirs, ARGV[i]), ARGV[i])
    redis.call('ZREM', theirs, ARGV[i])
    owner = to
  end
  if owner == to then moved[#moved + 1] = ARGV[i] end
end
if gone and redis.call('EXISTS', theirs) == 0 then redis.call('HDEL', KEYS[2], from) end
return moved
`)

// told translates the answers of scripts into the store's errors.
func (s *Store) told(answer int, err error) error {
	switch {
	case err != nil:
		return s.explain(err)
	case answer == 0:
		return store.ErrConflict
	case answer == -1:
		return store.ErrNotFound
	case answer == -2:
		if !s.lease.replaced.Swap(true) {
			s.log.Error(
				"another process has taken this invoker's name, and this one accepts no more calls;"+
					" end it, or start it with another --name", "name", s.lease.name)
		}
		return store.NotKept(store.ErrReplaced)
	}
	return nil
}

// Take implements store.Activations.
func (s *Store) Take(ctx context.Context, invoker string) error {
	if err := store.CheckNames(invoker); err != nil {
		return err
	}
	epoch, err := takeScript.Run(ctx, s.db, []string{leaseKey + invoker, invokersKey}, invoker,
		leaseFor.Milliseconds()).Int64()
	if err != nil {
		return s.explain(err)
	}
	s.lease.name, s.lease.epoch = invoker, epoch
	s.running.Go(s.keepLease)
	return nil
}

func (s *Store) keepLease() {
	each := time.NewTicker(s.lease.renewEvery)
	defer each.Stop()
	for !s.lease.replaced.Load() {
		select {
		case <-each.C:
			if err := s.renew(s.ctx); err != nil {
				s.lease.failed.Store(&err)
			} else {
				s.lease.failed.Store(nil)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Store) renew(ctx context.Context) error {
	keys := []string{leaseKey + s.lease.name, invokersKey}
	return s.told(renewScript.Run(ctx, s.db, keys, s.lease.name, s.lease.epoch,
		leaseFor.Milliseconds()).Int())
}

// giveUp ends the lease, so that others need not wait until it expires.
func (s *Store) giveUp() {
	if s.lease.name == "" {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	// otherwise it expires
	_ = giveUpScript.Run(ctx, s.db, []string{leaseKey + s.lease.name}, s.lease.epoch).Err()
}

// Adopt implements store.Activations.
func (s *Store) Adopt(ctx context.Context) (adopted []store.Accepted, err error) {
	l := &s.lease
	l.adopting.Lock()
	defer l.adopting.Unlock()
	if l.name == "" || l.replaced.Load() {
		return nil, nil
	}
	names, err := s.missed(ctx)
	for err == nil && (len(names) > 0 || l.from != "") {
		if l.from == "" {
			if l.moving, err = s.unfinished(ctx, names[0], batch); err != nil {
				break
			}
			l.from, names = names[0], names[1:]
		}
		var some []store.Accepted
		some, err = s.moveHere(ctx)
		adopted = append(adopted, some...)
	}
	return adopted, err
}

// missed returns the names that have had no lease for long enough.
func (s *Store) missed(ctx context.Context) (names []string, err error) {
	all, err := s.db.HKeys(ctx, invokersKey).Result()
	if err != nil {
		return nil, s.explain(err)
	}
	leases, err := s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range all {
			p.Exists(ctx, leaseKey+name)
		}
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	since := map[string]time.Time{}
	for i, name := range all {
		if name == s.lease.name || leases[i].(*redis.IntCmd).Val() == 1 {
			continue
		}
		if since[name] = s.lease.missed[name]; since[name].IsZero() {
			since[name] = time.Now()
		}
		if time.Since(since[name]) >= s.lease.missFor {
			names = append(names, name)
		}
	}
	s.lease.missed = since
	return names, nil
}

// moveHere moves promises to this invoker's name. If the answer of Redis is lost, the next Adopt
// asks again.
func (s *Store) moveHere(ctx context.Context) (moved []store.Accepted, err error) {
	l := &s.lease
	args := []any{l.name, l.epoch, prefix, l.from}
	for _, a := range l.moving {
		args = append(args, a.ID)
	}
	answer, err := moveScript.Run(ctx, s.db,
		[]string{leaseKey + l.from, invokersKey}, args...).Result()
	if err != nil {
		return nil, s.explain(err)
	}
	if code, is := answer.(int64); is {
		err = s.told(int(code), nil)
	}
	ids, _ := answer.([]any)
	for _, a := range l.moving {
		if slices.Contains(ids, any(a.ID)) {
			a.Invoker = l.name
			moved = append(moved, a)
		}
	}
	l.from, l.moving = "", nil
	return moved, err
}
