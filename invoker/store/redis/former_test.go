package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// The scripts of a former version, which did not count space, listed all records in one list, and
// read the bodies of documents from the stream. KEYS: docs, code, revision, changes. ARGV: field,
// body
var formerPut = redis.NewScript(`
local new = string.format('%.0f', redis.call('INCR', KEYS[3]))
redis.call('HSET', KEYS[1], ARGV[1], new .. ' ' .. ARGV[2])
redis.call('XADD', KEYS[4], new .. '-1', 'field', ARGV[1], 'body', ARGV[2])
return tonumber(new)
`)

// KEYS and ARGV as above.
var formerDelete = redis.NewScript(`
local new = string.format('%.0f', redis.call('INCR', KEYS[3]))
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[4], new .. '-1', 'field', ARGV[1])
return tonumber(new)
`)

// ARGV: id, namespace, name, Order, record
var formerFinish = redis.NewScript(`
redis.call('HSET', 'fastiov:record:' .. ARGV[1],
  'namespace', ARGV[2], 'name', ARGV[3], 'bytes', #ARGV[5], 'record', ARGV[5])
for _, list in ipairs({'', ':' .. ARGV[2], ':' .. ARGV[2] .. '\0' .. ARGV[3]}) do
  redis.call('ZADD', 'fastiov:records' .. list, 0, ARGV[4])
end
redis.call('INCRBY', 'fastiov:bytes', #ARGV[5])
`)

func (r *server) former(t *testing.T, script *redis.Script, args ...any) uint64 {
	t.Helper()
	n, err := script.Run(t.Context(), r.Admin,
		[]string{docsKey, codeKey, lastKey, changes}, args...).Uint64()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// If a former version changes documents of the same Redis, its changes are seen and counted with
// the others.
func TestAFormerVersionChangesDocuments(t *testing.T) {
	r := startServer(t)
	r.former(t, formerPut, field(key("before")), "12345")
	s := r.open(t)
	defer closeIt(t, s)
	seen := follow(t, s)
	used := func(want store.Space) {
		t.Helper()
		if got, err := s.Used(t.Context(), "guest"); got != want || err != nil {
			t.Errorf("used %+v, %v; want %+v", got, err, want)
		}
	}
	used(store.Space{Entities: 1, Documents: 5})
	for i := range 20 {
		name := fmt.Sprint(i % 3)
		seen.await(t, name, r.former(t, formerPut, field(key(name)), "former"))
		put(t, s, fmt.Sprint("new", i), 0)
	}
	doc := store.Doc{Key: key("one too many"), Body: []byte("{}")}
	var full *store.Full
	if _, err := s.Put(t.Context(), doc, nil, store.Space{Entities: 24}); !errors.As(err, &full) ||
		full.Then != 25 {
		t.Errorf("got %v", err)
	}
	used(store.Space{Entities: 24, Documents: 5 + 3*6 + 20*7})
	r.former(t, formerDelete, field(key("before")))
	seen.await(t, "before", 0)
	used(store.Space{Entities: 23, Documents: 3*6 + 20*7})
}

// An entry of the stream has no body. A former version would take that for a deletion, but it finds
// a gap before the entry and reads all documents again.
func TestTheStreamIsSmallAndAGapToAFormerVersion(t *testing.T) {
	r := startServer(t)
	s := r.open(t)
	defer closeIt(t, s)
	follow(t, s)
	last := r.former(t, formerPut, field(key("a")), "former")
	body := []byte(strings.Repeat("x", 1<<20))
	for i := range 5 {
		doc := store.Doc{Key: key(fmt.Sprint(i)), Body: body}
		if _, err := s.Put(t.Context(), doc, nil, store.Unbounded); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := r.Admin.XRange(t.Context(), changes, fmt.Sprintf("(%d-1", last), "+").Result()
	if err != nil || len(entries) != 5 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, entry := range entries {
		var revision uint64
		if _, err := fmt.Sscanf(entry.ID, "%d-1", &revision); err != nil || revision == last+1 {
			t.Errorf("after %d comes %s", last, entry.ID)
		}
		last = revision
		if size := len(fmt.Sprint(entry.Values)); size > 200 {
			t.Errorf("an entry has %d bytes", size)
		}
	}
}

// Records of a former version are dropped first, and completely.
func TestRecordsOfAFormerVersionGoFirst(t *testing.T) {
	const retain, n = 1 << 20, 200
	r := startServer(t)
	finished := func(i int) *store.Record {
		r := record(fmt.Sprintf("%032d", i))
		r.Body = storetest.Body(r.ID, 4000)
		return r
	}
	for i := range n {
		old := finished(i)
		r.former(t, formerFinish, old.ID, old.Namespace, old.Name, old.Order(),
			[]byte(old.Body.(store.Bytes)))
	}
	s, err := Open(t.Context(), r.URL(), retain, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		s.Finish(finished(n + i))
	}
	closeIt(t, s)
	s = r.open(t)
	defer closeIt(t, s)
	list, err := storetest.List(s, t.Context(), store.Filter{Namespace: "guest"}, 0, 2*n)
	if err != nil || len(list) > retain/4000 || len(list) < n || list[n-1] != finished(n).ID {
		t.Errorf("%d records are left, the %d. is %s (%v)", len(list), n, list[n-1], err)
	}
	for more := 1; more > 0 && err == nil; {
		more, err = s.Forget(t.Context(), "guest")
	}
	left, _ := r.Admin.Keys(t.Context(), recordsKey+"*").Result()
	held, _ := r.Admin.ZCard(t.Context(), heldKey).Result()
	bytes, _ := r.Admin.Get(t.Context(), prefix+"bytes").Int()
	if len(left) != 0 || held != 0 || bytes != 0 || err != nil {
		t.Errorf("left behind: %q, %d namespaces, %d bytes (%v)", left, held, bytes, err)
	}
}
