package command

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// An either takes plain HTTP and HTTPS at one address. Kubernetes's clients send no key without
// TLS, and OpenWhisk's are told of an address without it.
type either struct {
	net.Listener
	tls *tls.Config
}

// Accept implements net.Listener.
func (l either) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &eitherConn{Conn: conn, config: l.tls}, nil
}

type connectionKey struct{}

// tellTLS has a server's requests say, in their field TLS, that an eitherConn brought them by TLS.
func tellTLS(server *http.Server) {
	next := server.Handler
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, conn)
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, is := r.Context().Value(connectionKey{}).(*eitherConn); is {
			if secure := conn.tls.Load(); secure != nil {
				state := secure.ConnectionState()
				r.TLS = &state
			}
		}
		next.ServeHTTP(w, r)
	})
}

// takeHTTP2 has a server take HTTP/2, too: over TLS from whoever chooses it there, and without TLS
// as clients of gRPC speak it to services; to it an eitherConn's is without in both cases. A
// connection has a bound of requests at once, of the time in which its client takes nothing, and of
// the memory for what it sends. A request that nobody reads yet, as before a cold start, takes
// a quarter of that at most: so others of its connection go on beside three of these. A connection
// that brings part of a request's headers may idle, as one that brings nothing; and when the server
// stops, the client of an idle one has a second to see that.
func takeHTTP2(server *http.Server) {
	const atOnce, takesNothing = 100, 30 * time.Second
	const frame, window = 16 << 10, 256 << 10
	server.Protocols = &http.Protocols{}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	server.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: atOnce, WriteByteTimeout: takesNothing, MaxReadFrameSize: frame,
		MaxReceiveBufferPerConnection: window, MaxReceiveBufferPerStream: window / 4}
}

// handshake is the first byte of a client that speaks TLS. No method of HTTP begins with it.
const handshake = 0x16

// An eitherConn becomes one or the other by the first byte that comes.
type eitherConn struct {
	net.Conn
	config *tls.Config
	begun  sync.Once
	first  []byte // what was read to find out, and is still to be returned
	err    error
	tls    atomic.Pointer[tls.Conn] // nil: it is plain
}

func (c *eitherConn) begin() {
	var first [1]byte
	var n int
	n, c.err = c.Conn.Read(first[:])
	if c.first = first[:n]; n > 0 && first[0] == handshake {
		c.tls.Store(tls.Server(&raw{c.Conn, c}, c.config))
	}
}

// Read implements net.Conn.
func (c *eitherConn) Read(p []byte) (int, error) {
	c.begun.Do(c.begin)
	if secure := c.tls.Load(); secure != nil {
		return secure.Read(p)
	}
	return c.read(p)
}

// read reads what came, without TLS's eyes.
func (c *eitherConn) read(p []byte) (int, error) {
	if n := copy(p, c.first); n > 0 {
		c.first = c.first[n:]
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. A server reads first.
func (c *eitherConn) Write(p []byte) (int, error) {
	if secure := c.tls.Load(); secure != nil {
		return secure.Write(p)
	}
	return c.Conn.Write(p)
}

// CloseWrite says that no more comes.
func (c *eitherConn) CloseWrite() error {
	if secure := c.tls.Load(); secure != nil {
		_ = secure.CloseWrite()
	}
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *eitherConn) Close() error {
	if secure := c.tls.Load(); secure != nil {
		return secure.Close()
	}
	return c.Conn.Close()
}

// raw is the connection below TLS.
type raw struct {
	net.Conn
	of *eitherConn
}

func (r *raw) Read(p []byte) (int, error) { return r.of.read(p) }
