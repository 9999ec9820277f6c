package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// taken returns a store whose process has taken an invoker's name. It adopts without waiting.
func taken(t *testing.T, r *server, name string, log *slog.Logger) *Store {
	t.Helper()
	return takenFor(t, r, name, log, renewEvery)
}

// late is taken for a process that renews its lease only when it is told.
func late(t *testing.T, r *server, name string) *Store {
	t.Helper()
	return takenFor(t, r, name, quiet, time.Hour)
}

func takenFor(
	t *testing.T, r *server, name string, log *slog.Logger, renewEvery time.Duration,
) *Store {
	t.Helper()
	s, err := Open(t.Context(), r.URL(), plenty, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.lease.renewEvery, s.lease.missFor = renewEvery, 0
	if err := s.Take(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return s
}

// die ends a store's process as a crash does: Redis hears nothing from it any more.
func (s *Store) die() { _ = errors.Join(s.db.Close(), s.feed.Close()) }

func accept(t *testing.T, s *Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		a := store.Accepted{
			ID: id, Invoker: s.lease.name, Namespace: "guest", At: time.Now(), Body: []byte(id),
		}
		if err := s.Accept(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

// adopts checks that Adopt returns want promises.
func adopts(t *testing.T, s *Store, want int) (adopted []store.Accepted) {
	t.Helper()
	adopted, err := s.Adopt(t.Context())
	if err != nil || len(adopted) != want {
		t.Fatalf("%s adopts %d (%v), want %d", s.lease.name, len(adopted), err, want)
	}
	return adopted
}

func (r *server) unlease(t *testing.T, name string) {
	t.Helper()
	if err := r.Admin.Del(t.Context(), leaseKey+name).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAnOlderEpochIsRefused(t *testing.T) {
	r := startServer(t)
	var said bytes.Buffer
	first := taken(t, r, "one", slog.New(slog.NewTextHandler(&said, nil)))
	accept(t, first, "a", "b")
	if err := first.Sent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	second := taken(t, r, "one", quiet)
	accept(t, second, "c")

	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrReplaced) || !errors.Is(err, store.ErrNotKept) {
			t.Errorf("%s of the first: %v", what, err)
		}
	}
	refused("a promise", first.Accept(t.Context(), store.Accepted{ID: "d", Invoker: "one"}))
	refused("a send", first.Sent(t.Context(), "b"))
	refused("a renewal", first.renew(t.Context()))
	if err := first.Broken(); !errors.Is(err, store.ErrReplaced) {
		t.Errorf("the first says %v", err)
	}
	list, err := second.Unfinished(t.Context(), "one")
	if err != nil || len(list) != 3 {
		t.Errorf("the second finds %v (%v)", list, err)
	}
	if err := errors.Join(second.Sent(t.Context(), "b"), second.renew(t.Context()),
		second.Broken()); err != nil {
		t.Errorf("the second: %v", err)
	}
	first.Finish(record("a")) // the process ran it
	closeIt(t, first)         // it logs nothing after this
	if n := bytes.Count(said.Bytes(), []byte("\n")); n != 1 ||
		!bytes.Contains(said.Bytes(), []byte("accepts no more calls")) {
		t.Errorf("it says in %d lines: %s", n, &said)
	}
	if _, err := second.Get(t.Context(), "guest", "a"); err != nil {
		t.Errorf("the record of what the first ran: %v", err)
	}
	if n, err := r.Admin.Exists(t.Context(), leaseKey+"one").Result(); err != nil || n != 1 {
		t.Errorf("the first has ended the second's lease (%v)", err)
	}
}

func TestPromisesWithoutALeaseAreAdopted(t *testing.T) {
	r := startServer(t)
	one, two := taken(t, r, "one", quiet), taken(t, r, "two", quiet)
	const n = batch + 10
	for i := range n {
		accept(t, one, fmt.Sprint(i))
	}
	if err := one.Sent(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	adopts(t, two, 0)
	one.die()
	adopts(t, two, 0)
	r.unlease(t, "one")
	adopted := append(adopts(t, two, batch), adopts(t, two, n-batch)...)
	for i, a := range adopted {
		if a.ID != fmt.Sprint(i) || string(a.Body) != a.ID || a.Invoker != "two" ||
			a.Sent != (i == 0) {
			t.Fatalf("adopted %+v", a)
		}
	}
	adopts(t, two, 0)
	if err := two.Sent(t.Context(), "1"); err != nil {
		t.Error(err)
	}
	list, err := two.Unfinished(t.Context(), "two")
	if err != nil || len(list) != n {
		t.Errorf("%d are two's (%v)", len(list), err)
	}
	if names, err := r.Admin.HKeys(t.Context(), invokersKey).Result(); err != nil ||
		len(names) != 1 {
		t.Errorf("known are %v (%v)", names, err)
	}
}

// A former version had no leases. Only an invoker of the same name takes up its promises.
func TestPromisesOfAFormerVersionAreNotAdopted(t *testing.T) {
	r := startServer(t)
	former := r.open(t)
	defer closeIt(t, former)
	if err := former.Accept(t.Context(), store.Accepted{ID: "a", Invoker: "old"}); err != nil {
		t.Fatal(err)
	}
	adopts(t, taken(t, r, "new", quiet), 0)
	if list, err := taken(t, r, "old", quiet).Unfinished(t.Context(), "old"); err != nil ||
		len(list) != 1 {
		t.Errorf("old finds %v (%v)", list, err)
	}
}

// The lease expired because Redis stalled or its clock was set, but the process lives.
func TestALateLeaseFencesNobody(t *testing.T) {
	r := startServer(t)
	one, two := late(t, r, "one"), taken(t, r, "two", quiet)
	accept(t, one, "a", "b", "c")
	two.lease.missFor = time.Hour
	r.unlease(t, "one")
	adopts(t, two, 0)
	if err := one.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	adopts(t, two, 0)
	two.lease.missFor = 0
	adopts(t, two, 0) // because it has a lease again
	if err := one.Sent(t.Context(), "a"); err != nil {
		t.Error(err)
	}

	// It renews too late even for that. It has lost the adopted promises and keeps all others.
	r.unlease(t, "one")
	adopts(t, two, 3)
	if err := one.Sent(t.Context(), "b"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("sent what another has adopted: %v", err)
	}
	accept(t, one, "d")
	if err := errors.Join(one.renew(t.Context()),
		one.Sent(t.Context(), "d"), one.Broken()); err != nil {
		t.Error(err)
	}
}

// A name without promises is forgotten together with its lease. Later its process, which still
// lives, makes a promise and is killed.
func TestAPromiseOfAForgottenNameIsAdopted(t *testing.T) {
	r := startServer(t)
	one, two := late(t, r, "one"), taken(t, r, "two", quiet)
	r.unlease(t, "one")
	adopts(t, two, 0)
	accept(t, one, "a")
	one.die()
	adopts(t, two, 1)
}

// The answer to an adoption is lost, so the adopting process does not know what it has adopted.
func TestAnAdoptionWithoutAnAnswerIsAskedForAgain(t *testing.T) {
	r := startServer(t)
	one, two := taken(t, r, "one", quiet), taken(t, r, "two", quiet)
	accept(t, one, "a", "b", "c")
	closeIt(t, one) // Close gives its lease up
	list, err := two.unfinished(t.Context(), "one", batch)
	if err != nil {
		t.Fatal(err)
	}
	two.lease.from, two.lease.moving = "one", list
	if _, err := two.moveHere(t.Context()); err != nil {
		t.Fatal(err)
	}
	two.lease.from, two.lease.moving = "one", list
	done := record("c")
	if err := two.records.Write(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	adopts(t, two, 2)
	adopts(t, two, 0)
}

// The answer to a promise was lost. Another process may have adopted and sent the promise by now:
// then it must not be refused.
func TestWhatAnotherHasSentIsNotRefused(t *testing.T) {
	r := startServer(t)
	one := taken(t, r, "one", quiet)
	accept(t, one, "ran", "runs", "waits")
	again := taken(t, r, "one", quiet)
	if err := errors.Join(again.Sent(t.Context(), "ran"),
		again.Sent(t.Context(), "runs")); err != nil {
		t.Fatal(err)
	}
	ran := record("ran")
	ran.Body = store.Bytes("ran")
	if err := again.records.Write(t.Context(), ran); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"ran", "runs"} {
		if err := one.Refuse(t.Context(), record(id)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("what %s is refused: %v", id, err)
		}
	}
	list, err := again.Unfinished(t.Context(), "one")
	if err != nil || len(list) != 2 {
		t.Errorf("left are %v (%v)", list, err)
	}
	for range 2 { // the first answer may be lost
		if err := one.Refuse(t.Context(), record("waits")); err != nil {
			t.Error(err)
		}
	}
	if err := again.Sent(t.Context(), "waits"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("sent after it was refused: %v", err)
	}
}

// Epochs rise even after Redis has forgotten them, and a living process keeps its own.
func TestAFlushFencesNobody(t *testing.T) {
	r := startServer(t)
	one := taken(t, r, "one", quiet)
	if err := r.Admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	accept(t, one, "a")
	if err := one.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	two := taken(t, r, "one", quiet)
	if two.lease.epoch <= one.lease.epoch {
		t.Errorf("after %d comes %d", one.lease.epoch, two.lease.epoch)
	}
}

// Redis stalls for five seconds while its clock goes on.
func TestAStallOfRedisFencesNobodyAndLosesNoCall(t *testing.T) {
	r := startServer(t)
	s, other := taken(t, r, "one", quiet), taken(t, r, "two", quiet)
	accept(t, s, "sent later")
	answers := make(chan error, 3)
	r.Stop(t)
	time.AfterFunc(5*time.Second, func() { r.Continue(t) })
	ctx := context.WithoutCancel(t.Context())
	go func() { answers <- s.Accept(ctx, store.Accepted{ID: "accepted", Invoker: "one"}) }()
	go func() { answers <- s.Sent(ctx, "sent later") }()
	go func() { answers <- s.renew(ctx) }()
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	adopts(t, other, 0)
	if err := s.Broken(); err != nil {
		t.Error(err)
	}
}
