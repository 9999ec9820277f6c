package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
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

// mostConns bounds the connections of one user or, over TCP, of one certificate at one machine: the
// invoker finds room beside any other. As many of a machine may have shown no certificate yet.
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

// A door knows the connections of each user until they are closed. A client over TCP is a stranger
// at first. An address may be shared with whom the node expects, so strangers keep nobody out: of
// too many at one machine the first makes way for the last.
type door struct {
	log *slog.Logger

	mu        sync.Mutex
	conns     map[*visitor]bool
	users     map[string]int        // how many connections each has
	strangers map[string][]*visitor // of each machine, the first first
	refused   int                   // connections since warned
	warned    time.Time             // of connections that were refused
	stopped   bool
}

func newDoor(log *slog.Logger) *door {
	return &door{log: log, conns: map[*visitor]bool{}, users: map[string]int{},
		strangers: map[string][]*visitor{}}
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
		_, far := conn.RemoteAddr().(*net.TCPAddr)
		v := &visitor{Conn: conn, door: e.door, user: userOf(conn), stranger: far}
		if e.door.enter(v) {
			return v, nil
		}
		conn.Close()
	}
}

// A visitor is a connection of a user, or of a stranger.
type visitor struct {
	net.Conn
	door     *door
	user     string // or the machine of a stranger; it and stranger are guarded by the door
	stranger bool
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.door.leave(v)
	return v.Conn.Close()
}

// guarded are credentials of a server by which strangers pass its door.
type guarded struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guarded) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	v, shown := raw.(*visitor), info.(credentials.TLSInfo).State.PeerCertificates
	if !v.door.admit(v, shown[0].Subject.String()) {
		return nil, nil, errors.New("it has connections enough")
	}
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g guarded) Clone() credentials.TransportCredentials {
	return guarded{g.TransportCredentials.Clone()}
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
	if d.stopped {
		return false
	}
	if !v.stranger {
		return d.take(v)
	}
	if there := d.strangers[v.user]; len(there) == mostConns {
		first := there[0]
		first.Conn.Close() // the code that shakes hands there notices
		d.forget(first)
		d.refuse(v.user, time.Now())
	}
	d.strangers[v.user] = append(d.strangers[v.user], v)
	d.conns[v] = true
	return true
}

// admit lets a stranger in that has shown to be that subject.
func (d *door) admit(v *visitor, subject string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.conns[v] { // it has made way
		return false
	}
	d.forget(v)
	v.stranger, v.user = false, subject+" at "+v.user
	return d.take(v)
}

// take counts the connection of a user, unless that has enough.
func (d *door) take(v *visitor) bool {
	if d.users[v.user] == mostConns {
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
	d.log.Warn("connections too many of one user, or of strangers at one machine, are closed",
		"user", user, "most", mostConns, "closed", d.refused)
	d.warned, d.refused = now, 0
}

func (d *door) leave(v *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(v)
}

// forget counts a connection no more, if it still does.
func (d *door) forget(v *visitor) {
	switch {
	case !d.conns[v]:
		return
	case v.stranger:
		d.strangers[v.user] = slices.DeleteFunc(d.strangers[v.user],
			func(other *visitor) bool { return other == v })
		if len(d.strangers[v.user]) == 0 {
			delete(d.strangers, v.user)
		}
	default:
		if d.users[v.user]--; d.users[v.user] == 0 {
			delete(d.users, v.user)
		}
	}
	delete(d.conns, v)
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
