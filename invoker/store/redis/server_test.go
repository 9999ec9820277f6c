package redis

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/redis/redistest"
	"github.com/fastiov/fastiov/invoker/store/storetest"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

const plenty = 1 << 30

// server is a redis-server of a test's own.
type server struct{ *redistest.Server }

func startServer(t testing.TB) *server { return &server{redistest.Start(t)} }

func (r *server) open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(context.Background(), r.URL(), plenty, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh empties the server, see storetest.Fresh.
func (r *server) fresh(t testing.TB) func() (open func() store.Store) {
	return func() func() store.Store {
		if err := r.Admin.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		return func() store.Store { return r.open(t) }
	}
}

func put(t testing.TB, s *Store, name string, revision uint64) uint64 {
	t.Helper()
	doc := store.Doc{
		Key: key(name), Revision: revision, Body: fmt.Appendf(nil, "after %d", revision),
	}
	revision, err := s.Put(t.Context(), doc, nil, store.Unbounded)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func key(name string) store.Key {
	return store.Key{Kind: store.Actions, Namespace: "guest", Name: name}
}

func record(id string) *store.Record {
	return &store.Record{
		Indexed: store.Indexed{ID: id, Namespace: "guest", Name: "a"}, Body: storetest.Body(id, 0),
	}
}

func closeIt(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
