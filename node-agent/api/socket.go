package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A Server serves the node API on a listener.
type Server struct {
	grpc   *grpc.Server
	socket *socket // nil over TCP
}

// Serve serves until the listener fails or the server is stopped.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop closes the listeners and the connections, which ends what is under way.
func (s *Server) Stop() {
	if s.socket != nil {
		s.socket.stop()
	}
	s.grpc.Stop()
}

// socket is how a node meets clients on a Unix socket, where who may open it is the authentication.
// gRPC hands it each connection; it keeps those that begin with the greeting.
type socket struct {
	credentials.TransportCredentials
	node NodeServer
	log  *slog.Logger

	mu      sync.Mutex
	conns   map[net.Conn]bool // that gRPC does not know of: they have not begun, or carry frames
	stopped bool
}

func newSocket(node NodeServer, log *slog.Logger) *socket {
	return &socket{insecure.NewCredentials(), node, log, sync.Mutex{}, map[net.Conn]bool{}, false}
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *socket) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !s.enter(conn) {
		return nil, nil, net.ErrClosed
	}
	begin := make([]byte, len(greeting))
	n, err := conn.Read(begin[:1])
	if err == nil && begin[0] == greeting[0] {
		if _, err = io.ReadFull(conn, begin[1:]); err == nil && string(begin) == greeting {
			go s.serve(conn)
			return nil, nil, credentials.ErrConnDispatched
		}
		if err == nil {
			err = errors.New("it greets in no language that is known here")
		}
	}
	s.leave(conn)
	if err != nil {
		return nil, nil, err
	}
	return s.TransportCredentials.ServerHandshake(&begun{conn, begin[:n]})
}

// Clone implements credentials.TransportCredentials.
func (s *socket) Clone() credentials.TransportCredentials { return s }

// serve serves the frames of a connection.
func (s *socket) serve(conn net.Conn) {
	defer s.leave(conn)
	defer conn.Close()
	_, err := io.WriteString(conn, greeting)
	if err == nil {
		err = serveRuns(context.Background(), s.node, toInvoker{newFrames(conn)})
	}
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ECONNRESET) {
		s.log.Warn("an invoker's connection is closed, what it ran is ended; it may connect again",
			"err", err)
	}
}

func (s *socket) enter(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.conns[conn] = true
	}
	return !s.stopped
}

func (s *socket) leave(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *socket) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for conn := range s.conns {
		conn.Close()
	}
}

// begun is a connection of which the beginning has been read.
type begun struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}
