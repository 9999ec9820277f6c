package life

import (
	"fmt"
	"net"
	"syscall"
)

// A call is a connection into a sandbox. It ends with the sandbox, and tells why it broke.
type call struct {
	net.Conn
	life *Life
}

// Tie returns conn as a connection into the sandbox, which ends with it.
func (l *Life) Tie(conn net.Conn) net.Conn {
	tied := &call{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == nil {
		l.calls = map[*call]bool{}
	}
	l.calls[tied] = true
	if l.Cause() != nil {
		conn.Close() // it may have ended before this was there to be hung up
	}
	return tied
}

// HangUp closes all connections. Who reads or writes one learns that it was closed.
func (l *Life) HangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.calls {
		c.Conn.Close()
	}
}

func (c *call) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.why(err)
}

func (c *call) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.why(err)
}

// why prefers the reason for the sandbox's end, once nothing is left of it, to the error that its
// end brought about.
func (c *call) why(err error) error {
	if err == nil || c.life.Cause() == nil {
		return err
	}
	<-c.life.Done()
	return fmt.Errorf("the sandbox ended: %w", c.life.Cause())
}

func (c *call) Close() error {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	delete(c.life.calls, c)
	return c.Conn.Close()
}

// CloseWrite says to the other side that no more is written.
func (c *call) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return fmt.Errorf("a connection of %T cannot be closed one way", c.Conn)
}

// SyscallConn implements syscall.Conn.
func (c *call) SyscallConn() (syscall.RawConn, error) {
	if socket, is := c.Conn.(syscall.Conn); is {
		return socket.SyscallConn()
	}
	return nil, fmt.Errorf("a connection of %T is no socket", c.Conn)
}
