package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// follower records what another invoker has seen.
type follower struct {
	mu   sync.Mutex
	docs map[store.Key]store.Doc
	news chan struct{}
}

func follow(t *testing.T, s *Store) *follower {
	t.Helper()
	f := &follower{docs: map[store.Key]store.Doc{}, news: make(chan struct{}, 1)}
	err := s.Watch(t.Context(), func(d store.Doc) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if old := f.docs[d.Key]; d.Revision <= old.Revision {
			t.Errorf("%s: revision %d seen after %d", d.Name, d.Revision, old.Revision)
		}
		f.docs[d.Key] = d
		select {
		case f.news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// await waits until the follower has seen the document in that revision, or, for 0, as deleted.
func (f *follower) await(t *testing.T, name string, revision uint64) {
	t.Helper()
	for limit := time.After(20 * time.Second); ; {
		f.mu.Lock()
		d := f.docs[key(name)]
		f.mu.Unlock()
		if revision > 0 && d.Revision == revision ||
			revision == 0 && d.Revision > 0 && d.Body == nil {
			return
		}
		select {
		case <-f.news:
		case <-limit:
			t.Fatalf("%s was not seen as revision %d, but %d %q",
				name, revision, d.Revision, d.Body)
		}
	}
}

// awaitGone waits until the follower has seen the document as deleted, under any revision.
func (f *follower) awaitGone(t *testing.T, name string) {
	t.Helper()
	for limit := time.After(time.Minute); ; {
		f.mu.Lock()
		d, found := f.docs[key(name)]
		f.mu.Unlock()
		if found && d.Body == nil {
			return
		}
		select {
		case <-f.news:
		case <-limit:
			t.Fatalf("%s is still seen: %q", name, d.Body)
		}
	}
}

func TestInvokersSeeEachOthersChanges(t *testing.T) {
	r := startServer(t)
	one, other := r.open(t), r.open(t)
	defer closeIt(t, one)
	defer closeIt(t, other)
	seen := follow(t, other)
	var wg sync.WaitGroup
	last := make([]uint64, 4)
	for i, s := range []*Store{one, other, one, other} {
		wg.Go(func() {
			for range 50 {
				last[i] = put(t, s, fmt.Sprint(i), last[i])
			}
		})
	}
	wg.Wait()
	for i, revision := range last {
		seen.await(t, fmt.Sprint(i), revision)
	}
	if err := one.Delete(t.Context(), key("0"), last[0]); err != nil {
		t.Fatal(err)
	}
	seen.await(t, "0", 0)
	if _, err := other.Put(t.Context(), store.Doc{Key: key("1"), Revision: last[1] - 1,
		Body: []byte("{}")}, nil, store.Unbounded); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v", err)
	}
}

// While this invoker cannot read the stream, another one makes more changes than the stream holds.
// This invoker sees them all nevertheless.
func TestAChangeIsNotLostWithTheConnection(t *testing.T) {
	r := startServer(t)
	one, other := r.open(t), r.open(t)
	defer closeIt(t, one)
	defer closeIt(t, other)
	gone, changed := put(t, one, "gone", 0), put(t, one, "changed", 0)
	seen := follow(t, other)
	seen.await(t, "gone", gone)

	other.watching.Lock() // it reads, but cannot show what it read
	if err := r.Admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal",
		"SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	if err := one.Delete(t.Context(), key("gone"), gone); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		changed = put(t, one, "changed", changed)
	}
	added := put(t, one, "added", 0)
	if err := r.Admin.XTrimMaxLen(t.Context(), changes, 2).Err(); err != nil {
		t.Fatal(err)
	}
	other.watching.Unlock()
	seen.await(t, "gone", 0)
	seen.await(t, "changed", changed)
	seen.await(t, "added", added)
}

func TestARestartOfRedisIsSurvived(t *testing.T) {
	r := startServer(t)
	s, other := r.open(t), r.open(t)
	defer closeIt(t, other)
	seen := follow(t, s)
	revision := put(t, s, "a", 0)
	if err := s.Accept(t.Context(), store.Accepted{ID: "p", Invoker: "me"}); err != nil {
		t.Fatal(err)
	}

	r.Kill()
	err := s.Accept(t.Context(), store.Accepted{ID: "q", Invoker: "me"})
	if err == nil || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "store redis "+r.Socket()) {
		t.Errorf("got %v", err)
	}
	s.Finish(record("p"))
	if _, err := s.Get(t.Context(), "guest", "p"); err != nil {
		t.Errorf("a record that waits: %v", err)
	}
	r.Restart(t)

	revision = put(t, other, "a", revision)
	seen.await(t, "a", revision)
	put(t, s, "a", revision)
	closeIt(t, s) // which also writes the record
	if n, err := other.Count(t.Context(), store.Filter{Namespace: "guest"}); err != nil || n != 1 {
		t.Errorf("%d records (%v)", n, err)
	}
	if list, err := other.Unfinished(t.Context(), "me"); err != nil || len(list) != 0 ||
		s.Lost() != 0 {
		t.Errorf("unfinished %v (%v), lost %d", list, err, s.Lost())
	}
}

func TestTheOldestRecordsGo(t *testing.T) {
	r := startServer(t)
	const retain = 1 << 20
	count := func(retain int64, first, n int) int {
		s, err := Open(t.Context(), r.URL(), retain, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			record := record(fmt.Sprintf("%032d", first+i))
			record.Start = time.Unix(1_800_000_000, int64(first+i))
			record.Body = storetest.Body(record.ID, 10<<10)
			s.Finish(record)
		}
		closeIt(t, s)
		s = r.open(t)
		defer closeIt(t, s)
		left, err := s.Count(t.Context(), store.Filter{Namespace: "guest", Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := storetest.List(s, t.Context(),
			store.Filter{Namespace: "guest"}, 0, 1000); err != nil || len(list) != left ||
			list[0] != fmt.Sprintf("%032d", first+n-1) {
			t.Errorf("%d are listed (%v)", len(list), err)
		}
		return left
	}
	if left := count(retain, 0, 200); left > 100 || left < 80 {
		t.Errorf("%d records of 10 KiB in 1 MiB", left)
	}
	if left := count(retain/4, 1000, 100); left > 25 || left < 20 {
		t.Errorf("%d records of 10 KiB in 256 KiB", left)
	}
	if keys, err := r.Admin.Keys(t.Context(), recordKey+"*").Result(); err != nil ||
		len(keys) > 25 {
		t.Errorf("%d records are left behind (%v)", len(keys), err)
	}
}

// Of records that are sent together, those that Redis has no memory for are sent again.
func TestRecordsWithoutRoomAreKept(t *testing.T) {
	r := startServer(t)
	s := r.open(t)
	defer closeIt(t, s)
	info, err := r.Admin.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	for line := range strings.Lines(info) {
		_, _ = fmt.Sscanf(line, "used_memory:%d", &used)
	}
	limit := func(bytes int64) {
		t.Helper()
		if err := r.Admin.ConfigSet(t.Context(), "maxmemory", fmt.Sprint(bytes)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	const size = 4 << 20
	var some []*store.Record
	for i := range 10 {
		r := record(fmt.Sprintf("%032d", i))
		r.Body = storetest.Body(r.ID, size)
		some = append(some, r)
	}
	limit(used + 5*size) // which what comes takes of, too
	done, refused, err := s.send(t.Context(), some)
	limit(0)
	kept, failed := r.Admin.Keys(t.Context(), recordKey+"*").Result()
	if done == 0 || done != len(kept) || refused != 0 || err == nil || failed != nil {
		t.Errorf("%d are done and %d kept of %d, %d refused: %v, %v", done, len(kept), len(some),
			refused, err, failed)
	}
}

// Records are not sent where Redis refuses the connection: none of them is done.
func TestRecordsOfARefusedConnectionAreKept(t *testing.T) {
	r := startServer(t)
	password := func(password string) {
		t.Helper()
		if err := r.Admin.ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
			t.Fatal(err)
		}
	}
	password("former")
	s, err := Open(t.Context(), strings.Replace(r.URL(), "unix://", "unix://:former@", 1), plenty,
		quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer closeIt(t, s)
	password("present")
	if err := r.Admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err(); err != nil {
		t.Fatal(err) // but for this one
	}
	done, refused, err := s.send(t.Context(), []*store.Record{record(fmt.Sprintf("%032d", 1))})
	password("former")
	if done != 0 || refused != 0 || err == nil {
		t.Errorf("%d are done, %d refused: %v", done, refused, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	r := startServer(t)
	set := func(name, value string) {
		if err := r.Admin.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(url, want string) {
		t.Helper()
		s, err := Open(t.Context(), url, plenty, quiet)
		if err == nil {
			closeIt(t, s)
			t.Fatalf("it was opened, want %q", want)
		}
		if message := err.Error(); !strings.Contains(message, want) ||
			strings.Contains(message, "\n") || strings.Contains(message, "secret") {
			t.Errorf("got %q, want %q", message, want)
		}
	}
	set("appendfsync", "everysec")
	refused(r.URL(), "do CONFIG SET appendfsync always")
	set("appendfsync", "always")
	set("no-appendfsync-on-rewrite", "yes")
	refused(r.URL(), "do CONFIG SET no-appendfsync-on-rewrite no")
	set("no-appendfsync-on-rewrite", "no")
	set("maxmemory", "100mb")
	set("maxmemory-policy", "allkeys-lru")
	refused(r.URL(), "do CONFIG SET maxmemory-policy noeviction")
	set("maxmemory", "0")
	closeIt(t, r.open(t))
	if err := r.Admin.Set(t.Context(), formatKey, "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	refused(r.URL(), "this version reads 1")
	set("appendonly", "no")
	refused(r.URL(), "do CONFIG SET appendonly yes")
	refused("unix:///nowhere/socket", "is it running")
	refused("redis://user:secret@[::1", "the address of a Redis is")
	refused("redis://user:secret@127.0.0.1:1", "store redis 127.0.0.1:1: ")
}

// Redis is killed in the middle of the work. Everything that it acknowledged is there when it is
// back.
func TestACrashOfRedisLosesNothingPromised(t *testing.T) {
	const rounds = 6
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := startServer(t)
	var all storetest.Losses
	for round := range rounds {
		s := r.open(t)
		var log bytes.Buffer
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			storetest.Load(ctx, s, fmt.Sprint(round), seed, &log)
		}()
		time.Sleep(time.Duration(50+random.IntN(200)) * time.Millisecond)
		crash := time.Now()
		r.Kill()
		<-done
		cancel()
		_ = s.Close() // so the pending records are lost as well, as if the invoker had ended
		r.Restart(t)
		s = r.open(t)
		l := storetest.Account(t, s, &log, crash, false)
		closeIt(t, s)
		all.Finished += l.Finished
		all.InWindow += l.InWindow
		all.Late += l.Late
		all.Oldest = max(all.Oldest, l.Oldest)
	}
	t.Logf(
		"%d records finished; lost within the window: %d, later: %d; the oldest had finished %v before",
		all.Finished, all.InWindow, all.Late, all.Oldest)
	if all.Finished == 0 || all.Oldest > time.Second {
		t.Errorf("%+v", all)
	}
}

func TestJudge(t *testing.T) {
	if err := judge(map[string]string{}); err != nil {
		t.Errorf("settings that nobody tells are judged: %v", err)
	}
}

func TestRecordsAreShared(t *testing.T) {
	const retain = 1 << 20
	r := startServer(t)
	storetest.Shares(t, func() store.Store {
		s, err := Open(t.Context(), r.URL(), retain, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return unhurried{s}
	}, retain)
}

// unhurried closes a store when not much is pending: it writes at most five seconds then.
type unhurried struct{ *Store }

func (s unhurried) Close() error {
	for end := time.Now().Add(2 * time.Minute); s.records.Left() > batch &&
		time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return s.Store.Close()
}

func TestPromisesOfANameAreTakenUpByThatName(t *testing.T) {
	s := startServer(t).open(t)
	defer closeIt(t, s)
	for id, invoker := range map[string]string{"a": "me", "b": "you"} {
		if err := s.Accept(t.Context(), store.Accepted{ID: id, Invoker: invoker}); err != nil {
			t.Fatal(err)
		}
	}
	for invoker, want := range map[string]int{"me": 1, "you": 1, "he": 0} {
		if list, err := s.Unfinished(t.Context(), invoker); err != nil || len(list) != want {
			t.Errorf("%s has %v (%v), want %d", invoker, list, err, want)
		}
	}
}

// If several invokers send one promise at once, one of them succeeds.
func TestAPromiseIsSentOnce(t *testing.T) {
	r := startServer(t)
	s, other := r.open(t), r.open(t)
	defer closeIt(t, s)
	defer closeIt(t, other)
	const promises = 200
	var sent, refused atomic.Int64
	for i := range promises {
		id := fmt.Sprint(i)
		if err := s.Accept(t.Context(), store.Accepted{ID: id, Invoker: "me"}); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		for _, who := range []*Store{s, other} {
			both.Go(func() {
				switch err := who.Sent(t.Context(), id); {
				case err == nil:
					sent.Add(1)
				case errors.Is(err, store.ErrConflict):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	if sent.Load() != promises || refused.Load() != promises {
		t.Errorf("of %d promises, %d were sent, and %d sends were refused",
			promises, sent.Load(), refused.Load())
	}
}
