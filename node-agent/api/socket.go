package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A Server serves the node API on a listener.
type Server struct {
	grpc     *grpc.Server
	door     *door
	frames   *sync.WaitGroup // connections of frames
	log      *slog.Logger
	patience time.Duration // with calls, once it is stopped
	givenUp  context.Context
	giveUp   context.CancelFunc
}

// UndoWithin bounds how long a call may take to end after its caller has gone: a start kills its
// VMM, which may take half a minute to die.
const UndoWithin = 40 * time.Second

func serverOf(g *grpc.Server, frames *sync.WaitGroup, log *slog.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{grpc: g, door: newDoor(log), frames: frames, log: log, patience: UndoWithin,
		givenUp: ctx, giveUp: cancel}
}

// Serve serves until the listener fails or the server is stopped.
func (s *Server) Serve(l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(&entrance{l, s.door}) }()
	select {
	case err := <-served:
		return err
	case <-s.givenUp.Done():
		return grpc.ErrServerStopped
	}
}

// Stop closes the listeners and the connections, which ends the calls under way. It returns when
// they have ended, so that what they use can be closed, or when they have taken too long.
func (s *Server) Stop() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.door.stop()
		s.grpc.Stop()
		s.frames.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(s.patience):
		s.log.Error("calls of the node API do not end; it ends without them",
			"waited", s.patience)
		s.giveUp()
	}
}

// mostConns bounds the connections of one user or, over TCP, of one machine: the invoker finds room
// beside any other.
const mostConns = 64

// socket meets a node's clients on a Unix socket, where the right to open it is the authentication.
// gRPC hands it each connection; it keeps those that begin with the greeting.
type socket struct {
	credentials.TransportCredentials
	node   NodeServer
	log    *slog.Logger
	budget *budget

	serving sync.WaitGroup // connections of frames
}

func newSocket(node NodeServer, log *slog.Logger) *socket {
	return &socket{
		TransportCredentials: insecure.NewCredentials(), node: node, log: log, budget: newBudget(),
	}
}

// A door knows the connections of each user until they are closed.
type door struct {
	log *slog.Logger

	mu      sync.Mutex
	conns   map[*visitor]bool
	users   map[string]int // how many connections each has
	refused int            // connections since warned
	warned  time.Time      // of connections that were refused
	stopped bool
}

func newDoor(log *slog.Logger) *door {
	return &door{log: log, conns: map[*visitor]bool{}, users: map[string]int{}}
}

// An entrance is a listener whose connections pass a door.
type entrance struct {
	net.Listener
	door *door
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	for {
		conn, err := e.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{Conn: conn, door: e.door, user: userOf(conn)}
		if e.door.enter(v) {
			return v, nil
		}
		conn.Close()
	}
}

// A visitor is a connection of a user.
type visitor struct {
	net.Conn
	door *door
	user string
	left sync.Once
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.left.Do(func() { v.door.leave(v) })
	return v.Conn.Close()
}

// userOf returns the user who has connected, or the machine. All connections of which the kernel
// tells neither count as one user's.
func userOf(conn net.Conn) string {
	const nobody = "unknown"
	if far, is := conn.RemoteAddr().(*net.TCPAddr); is {
		return machineOf(far.AddrPort().Addr())
	}
	peer, is := conn.(*net.UnixConn)
	if !is {
		return nobody
	}
	raw, err := peer.SyscallConn()
	if err != nil {
		return nobody
	}
	user := nobody
	_ = raw.Control(func(fd uintptr) {
		if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED); err == nil {
			user = strconv.FormatUint(uint64(who.Uid), 10)
		}
	})
	return user
}

// machineOf returns whose an address is: a machine with IPv6 has 2^64 of them.
func machineOf(at netip.Addr) string {
	at = at.Unmap().WithZone("")
	if at.Is4() {
		return at.String()
	}
	return netip.PrefixFrom(at, 64).Masked().String()
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *socket) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begin := make([]byte, len(greeting))
	n, err := conn.Read(begin[:1])
	if err == nil && begin[0] == greeting[0] {
		if _, err = io.ReadFull(conn, begin[1:]); err == nil && string(begin) == greeting {
			s.serving.Go(func() { s.serve(conn) })
			return nil, nil, credentials.ErrConnDispatched
		}
		if err == nil {
			err = errors.New("it greets in no language that is known here")
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return s.TransportCredentials.ServerHandshake(&begun{conn, begin[:n]})
}

// Clone implements credentials.TransportCredentials.
func (s *socket) Clone() credentials.TransportCredentials { return s }

// serve serves the frames of a connection.
func (s *socket) serve(conn net.Conn) {
	defer conn.Close()
	_, err := io.WriteString(conn, greeting)
	if err == nil {
		err = s.serveFrames(newFrames(conn, s.budget))
	}
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ECONNRESET) {
		s.log.Warn("an invoker's connection is closed, what it ran is ended; it may connect again",
			"err", err)
	}
}

func (s *socket) serveFrames(f *frames) error {
	tick := time.NewTicker(silence)
	defer tick.Stop()
	ended := make(chan struct{})
	defer close(ended)
	go f.guard(ended, tick.C)
	return serveRuns(context.Background(), s.node, toInvoker{f}, s.budget)
}

func (d *door) enter(v *visitor) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped:
		return false
	case d.users[v.user] == mostConns:
		d.refuse(v.user, time.Now())
		return false
	}
	d.users[v.user]++
	d.conns[v] = true
	return true
}

// refuse counts a connection too many, and logs one now and then: whoever opens them may do so
// without end.
func (d *door) refuse(user string, now time.Time) {
	d.refused++
	if now.Sub(d.warned) < silence {
		return
	}
	d.log.Warn("connections too many of one user, or one machine, are closed",
		"user", user, "most", mostConns, "closed", d.refused)
	d.warned, d.refused = now, 0
}

func (d *door) leave(v *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, v)
	if d.users[v.user]--; d.users[v.user] == 0 {
		delete(d.users, v.user)
	}
}

func (d *door) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for v := range d.conns {
		v.Conn.Close() // the code that holds the connection notices, and leaves
	}
}

// begun is a connection whose beginning has been read.
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
