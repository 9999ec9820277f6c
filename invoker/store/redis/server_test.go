package redis

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/fastiov/fastiov/invoker/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

const plenty = 1 << 30

// server is a redis-server of a test's own, on a socket in a directory of its own, with the settings that promises need.
type server struct {
	dir     string
	process *exec.Cmd
	admin   *redis.Client
}

func startServer(t testing.TB) *server {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a redis-server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "fastiov-redis") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	r := &server{dir: dir}
	r.admin = redis.NewClient(&redis.Options{Network: "unix", Addr: r.socket(), MaxRetries: -1})
	r.start(t)
	t.Cleanup(func() {
		r.kill()
		_ = r.admin.Close()
		_ = os.RemoveAll(dir)
	})
	return r
}

func (r *server) socket() string { return filepath.Join(r.dir, "socket") }
func (r *server) url() string    { return "unix://" + r.socket() }

func (r *server) start(t testing.TB) {
	t.Helper()
	r.process = exec.Command("redis-server", "--port", "0", "--unixsocket", r.socket(), "--dir", r.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--logfile", filepath.Join(r.dir, "log"))
	if err := r.process.Start(); err != nil {
		t.Fatal(err)
	}
	for r.admin.Ping(context.Background()).Err() != nil {
		if r.process.ProcessState != nil || t.Context().Err() != nil {
			log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			t.Fatalf("redis-server does not answer:\n%s", log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// kill ends it as a crash does.
func (r *server) kill() {
	_ = r.process.Process.Kill()
	_ = r.process.Wait()
}

func (r *server) open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(context.Background(), r.url(), plenty, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh empties the server, see storetest.Fresh.
func (r *server) fresh(t testing.TB) func() (open func() store.Store) {
	return func() func() store.Store {
		if err := r.admin.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		return func() store.Store { return r.open(t) }
	}
}

func put(t testing.TB, s *Store, name string, revision uint64) uint64 {
	t.Helper()
	doc := store.Doc{Key: key(name), Revision: revision, Body: fmt.Appendf(nil, "after %d", revision)}
	revision, err := s.Put(t.Context(), doc, nil, store.Unbounded)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func key(name string) store.Key {
	return store.Key{Kind: store.Actions, Namespace: "guest", Name: name}
}

func closeIt(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
