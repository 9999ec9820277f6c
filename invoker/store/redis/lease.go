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

// A lease is what a process has of its invoker's name. Whoever starts under a name gets a higher epoch
// than the one before, which is fenced then: Redis refuses its promises. A process renews its lease
// while it lives. Where a lease is gone, other invokers adopt the promises of that name.
//
// A lease that runs out fences nobody. Redis may have stalled, or its clock may have been set: its
// process renews it then. So others wait for that, by their own clock, before they adopt.
type lease struct {
	name     string // empty: this process took none, and may use any
	epoch    int64
	replaced atomic.Bool
	failed   atomic.Pointer[error] // why it could not be renewed; nil: it was

	adopting sync.Mutex
	missFor  time.Duration        // how long others are without a lease before their promises are adopted
	missed   map[string]time.Time // names without a lease, and since when
	from     string               // whose promises may have been moved to this name; empty: nobody's
	moving   []store.Accepted     // they
}

const (
	leaseFor   = 20 * time.Second
	renewEvery = 4 * time.Second
	missFor    = 10 * time.Second
)

// fencing is the part of a script that refuses a process that was replaced. KEYS: _, invokers. ARGV: its
// invoker, its epoch
const fencing = `
if (tonumber(redis.call('HGET', KEYS[2], ARGV[1])) or 0) > tonumber(ARGV[2]) then return -2 end
`

// An epoch is higher than all before, also where Redis has forgotten them: it begins with the time.
//
// KEYS: lease, invokers. ARGV: invoker, milliseconds that the lease is for
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

// What moves promises to another invoker where their own has no lease, and returns which are that
// one's now. A name that has none left is forgotten.
//
// KEYS: lease of who had them, invokers. ARGV: who takes them, its epoch, prefix, who had them, ids…
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

// told gives the answers of scripts the store's words.
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
			s.log.Error("another process has taken this invoker's name, and this one accepts no more calls;"+
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
	each := time.NewTicker(renewEvery)
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
	return s.told(renewScript.Run(ctx, s.db, keys, s.lease.name, s.lease.epoch, leaseFor.Milliseconds()).Int())
}

// giveUp tells the others at once that this process is no more.
func (s *Store) giveUp() {
	if s.lease.name == "" {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	_ = giveUpScript.Run(ctx, s.db, []string{leaseKey + s.lease.name}, s.lease.epoch).Err() // it runs out anyway
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

// missed are the names that have had no lease for long enough.
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

// moveHere makes promises those of this name. Where its answer is lost, the next Adopt asks again.
func (s *Store) moveHere(ctx context.Context) (moved []store.Accepted, err error) {
	l := &s.lease
	args := []any{l.name, l.epoch, prefix, l.from}
	for _, a := range l.moving {
		args = append(args, a.ID)
	}
	answer, err := moveScript.Run(ctx, s.db, []string{leaseKey + l.from, invokersKey}, args...).Result()
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
