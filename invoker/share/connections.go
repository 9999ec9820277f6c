package share

import (
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Connections bounds the connections of several listeners together, and gives each address a share
// of them. An address is an IPv4 address or an IPv6 /64, which is what one caller usually has.
type Connections struct {
	whole *Whole

	mu      sync.Mutex
	from    map[netip.Prefix]*Part
	refused Refused
}

// Refused counts connections that were closed at once.
type Refused struct {
	Address uint64 // because the address had used its share
	All     uint64 // because no connection was free
}

// NewConnections returns a bound of most connections.
func NewConnections(most int) *Connections {
	return &Connections{whole: Of(int64(most)), from: map[netip.Prefix]*Part{}}
}

// Counts returns how many connections are allowed and open, and how many were refused.
func (c *Connections) Counts() (most, open int64, refused Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.whole.Size(), c.whole.Used(), c.refused
}

// Bound returns the listener without surplus connections: Accept sends them told, if it is not
// empty, and closes them.
func (c *Connections) Bound(l net.Listener, told []byte) net.Listener {
	return &listener{l, c, told}
}

type listener struct {
	net.Listener
	of   *Connections
	told []byte
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if end := l.of.take(prefix(accepted.RemoteAddr())); end != nil {
			return &connection{accepted, end}, nil
		}
		if len(l.told) > 0 {
			// told fits the socket's empty buffer, so this does not block
			_, _ = accepted.Write(l.told)
		}
		_ = accepted.Close()
	}
}

// take counts one more connection of the address. end gives it back and may be called again. take
// returns nil if there is no room.
func (c *Connections) take(from netip.Prefix) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.from[from]
	if one == nil {
		one = &Part{}
	}
	switch err := c.whole.Take(one, 1); {
	case errors.Is(err, ErrPart):
		c.refused.Address++
		return nil
	case err != nil:
		c.refused.All++
		return nil
	}
	c.from[from] = one
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.whole.Give(one, 1)
		if one.Held() == 0 {
			delete(c.from, from)
		}
	})
}

func prefix(of net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(of.String())
	if err != nil {
		return netip.Prefix{} // all peers without an internet address count as one
	}
	bits, address := 64, at.Addr().Unmap().WithZone("")
	if address.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(address, bits).Masked()
}

type connection struct {
	net.Conn
	end func()
}

func (c *connection) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// CloseWrite tells the other side that no more data comes. A server does so before it closes, so
// that its last answer is read.
func (c *connection) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}
