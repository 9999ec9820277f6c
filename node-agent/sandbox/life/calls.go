package life

import (
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Calls are the connections into a sandbox. They end with it.
type Calls struct {
	life *Life

	mu   sync.Mutex
	open map[*call]bool
}

// Calls returns an empty set of connections into the sandbox.
func (l *Life) Calls() *Calls { return &Calls{life: l, open: map[*call]bool{}} }

// A call is a connection that tells why it broke.
type call struct {
	net.Conn
	all *Calls
}

// Add returns conn as one that ends with the sandbox.
func (c *Calls) Add(conn net.Conn) net.Conn {
	added := &call{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[added] = true
	if c.life.Cause() != nil {
		conn.Close() // it may have ended before this was there to be hung up
	}
	return added
}

// HangUp closes all connections. Who reads or writes one learns that it was closed.
func (c *Calls) HangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		conn.Conn.Close()
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
	life := c.all.life
	if err == nil || life.Cause() == nil {
		return err
	}
	<-life.Done()
	return fmt.Errorf("the sandbox ended: %w", life.Cause())
}

func (c *call) Close() error {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	delete(c.all.open, c)
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
