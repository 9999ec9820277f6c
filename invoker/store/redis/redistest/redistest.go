// Package redistest starts a redis-server for a test, which the test may kill and stall.
package redistest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server listens on a socket in a directory of its own, with the settings that promises need.
type Server struct {
	Admin   *redis.Client
	dir     string
	process *exec.Cmd
	ended   chan struct{} // closed when process has ended
}

// Start starts a server that ends with the test. Without redis-server on this machine, the test is
// skipped.
func Start(t testing.TB) *Server {
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
	// the path of t.TempDir may be too long for a socket
	dir, err := os.MkdirTemp("", "fastiov-redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{dir: dir}
	s.Admin = redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket(), MaxRetries: -1})
	t.Cleanup(func() {
		if s.ended != nil {
			s.Kill()
		}
		_ = s.Admin.Close()
		_ = os.RemoveAll(dir)
	})
	s.Restart(t)
	return s
}

// Socket returns the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// URL returns the server's address for a store.
func (s *Server) URL() string { return "unix://" + s.Socket() }

// Restart starts the server again after Kill.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.process = exec.Command("redis-server", "--port", "0", "--unixsocket", s.Socket(), "--dir",
		s.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--logfile", filepath.Join(s.dir, "log"))
	var said bytes.Buffer // before it has its log
	s.process.Stdout, s.process.Stderr = &said, &said
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	process, ended := s.process, make(chan struct{})
	s.ended = ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for s.Admin.Ping(context.Background()).Err() != nil {
		why := ""
		select {
		case <-tick.C:
			continue
		case <-ended:
			why = process.ProcessState.String()
		case <-late:
			why = "two minutes are over"
		case <-t.Context().Done():
			why = t.Context().Err().Error()
		}
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		t.Fatalf("redis-server does not answer: %s\n%s%s", why, &said, log)
	}
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// Stop makes the server do nothing until Continue, like a stalled disk.
func (s *Server) Stop(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Continue ends a Stop.
func (s *Server) Continue(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Error(err)
	}
}
