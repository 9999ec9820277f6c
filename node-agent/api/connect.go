package api

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// MostData bounds what one message of Connect carries.
const MostData = 1 << 20

// atOnce bounds the bytes that a connection sends in one message: large enough to cost little, and
// small enough that many connections on one HTTP/2 connection share it.
const atOnce = 64 << 10

// A connection is a stream of Connect as a net.Conn. It has no deadlines: its context ends it.
type connection struct {
	grpc.BidiStreamingClient[ConnectRequest, ConnectReply]
	hangUp  context.CancelFunc
	sending sync.Mutex
	closed  atomic.Bool // one way: no more is sent
	rest    []byte      // of the last message
	over    atomic.Bool // nothing more comes
	ending  sync.Once
}

// Connect connects to a TCP port of a sandbox on node. The connection can be closed one way, by
// CloseWrite; it ends with ctx.
func Connect(ctx context.Context, node NodeClient, id string, port int) (net.Conn, error) {
	ctx, hangUp := context.WithCancel(ctx)
	stream, err := node.Connect(ctx)
	if err == nil {
		_ = stream.Send(&ConnectRequest{Id: id, Port: uint32(port)}) // Begun returns the error
		err = Begun[ConnectReply](stream)
	}
	if err != nil {
		hangUp()
		return nil, err
	}
	return &connection{BidiStreamingClient: stream, hangUp: hangUp}, nil
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	for len(c.rest) == 0 && !c.over.Load() {
		reply, err := c.Recv()
		if err != nil {
			return 0, err
		}
		c.rest = reply.Data
		c.over.Store(reply.End)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	if n == 0 && c.over.Load() && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *connection) Write(p []byte) (n int, err error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	for n < len(p) {
		data := p[n:min(len(p), n+atOnce)]
		if err := c.Send(&ConnectRequest{Data: append([]byte(nil), data...)}); err != nil {
			return n, io.ErrClosedPipe // Read has the reason
		}
		n += len(data)
	}
	return n, nil
}

// CloseWrite says to the sandbox that no more is sent.
func (c *connection) CloseWrite() error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.closed.Store(true)
	return c.CloseSend()
}

// Close implements net.Conn. Where both sides have said all, what was sent still arrives.
func (c *connection) Close() error {
	if !c.closed.Load() || !c.over.Load() {
		c.hangUp()
		return nil
	}
	c.ending.Do(func() {
		go func() {
			defer c.hangUp()
			_, _ = c.Recv() // returns when the node has passed on the last byte
		}()
	})
	return nil
}

func (c *connection) LocalAddr() net.Addr              { return sandboxAddr{} }
func (c *connection) RemoteAddr() net.Addr             { return sandboxAddr{} }
func (c *connection) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *connection) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *connection) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "connect" }
func (sandboxAddr) String() string  { return "sandbox" }
