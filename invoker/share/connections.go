package share

import (
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Connections bounds those of some listeners together, and gives each address a share of them: an
// IPv4 address, or the /64 of an IPv6 one, which is what one caller has.
type Connections struct {
	whole *Whole

	mu      sync.Mutex
	from    map[netip.Prefix]*Part
	refused Refused
}

// Refused counts connections that were closed at once.
type Refused struct {
	Address uint64 // theirs had its share
	All     uint64 // there was no room for anybody
}

// NewConnections bounds connections by their number.
func NewConnections(most int) *Connections {
	return &Connections{whole: Of(int64(most)), from: map[netip.Prefix]*Part{}}
}

// Counts are how many connections there may be, how many are open, and which were refused.
func (c *Connections) Counts() (most, open int64, refused Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.whole.Size(), c.whole.Used(), c.refused
}

// Bound returns the listener without the connections that are too many: they are sent what is told
// them, if anything, and closed.
func (c *Connections) Bound(l net.Listener, told []byte) net.Listener { return &listener{l, c, told} }

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
			_, _ = accepted.Write(l.told) // which fits its buffer: nothing has been sent before
		}
		_ = accepted.Close()
	}
}

// take counts one more from there; end takes it back, once. It is nil where there is no room.
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
		return netip.Prefix{} // all that have no address of the internet count as one
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

// CloseWrite tells the other side that nothing more comes: a server does so before it closes, so that
// its last answer is read.
func (c *connection) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}
