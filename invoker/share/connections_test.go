package share

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// dial connects from an address of this machine. The connection ends with the test.
func dial(t *testing.T, from string, to net.Addr) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	conn, err := dialer.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// One address gets half of the connections at most, so another one finds room. A connection that
// ends is free for others.
func TestIdleConnectionsLeaveOthersTheirs(t *testing.T) {
	const most = 16
	c := NewConnections(most)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bound := c.Bound(raw, []byte("full"))
	defer bound.Close()
	accepted := make(chan net.Conn, 2*most)
	go func() {
		defer close(accepted)
		for {
			conn, err := bound.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	var idle []net.Conn
	var last net.Conn
	for range most {
		last = dial(t, "127.0.0.1", raw.Addr())
	}
	if told, err := io.ReadAll(last); err != nil || string(told) != "full" {
		t.Errorf("the last is told %q, %v", told, err)
	}
	for range most / 2 {
		idle = append(idle, <-accepted)
	}
	dial(t, "127.0.0.2", raw.Addr())
	other := <-accepted
	if from := other.RemoteAddr().(*net.TCPAddr).IP.String(); from != "127.0.0.2" {
		t.Errorf("%s is given another connection, and it has %d", from, len(idle))
	}
	if all, open, refused := c.Counts(); all != most || open != most/2+1 ||
		refused.Address != most/2 || refused.All != 0 {
		t.Errorf("%d open of %d, refused %+v", open, all, refused)
	}
	for _, conn := range idle {
		conn.Close()
		conn.Close()
	}
	waiting := dial(t, "127.0.0.1", raw.Addr())
	conn := <-accepted
	if half, can := conn.(interface{ CloseWrite() error }); !can || half.CloseWrite() != nil {
		t.Error("it cannot be closed on one side")
	}
	if _, err := io.ReadAll(waiting); err != nil {
		t.Error(err)
	}
	conn.Close()
	other.Close()
	if _, open, _ := c.Counts(); open != 0 || len(c.from) != 0 {
		t.Errorf("%d are open when all have been closed, of %d addresses", open, len(c.from))
	}
}

func TestWhatIsOneCaller(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.2:1": "127.0.0.2/32", "[::ffff:127.0.0.2]:1": "127.0.0.2/32",
		"[2001:db8::1:2:3:4]:1": "2001:db8::/64", "[fe80::1%lo]:1": "fe80::/64",
	} {
		if got := prefix(net.TCPAddrFromAddrPort(
			netip.MustParseAddrPort(address))).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if got := prefix(&net.UnixAddr{Name: "/x"}); got.IsValid() {
		t.Errorf("a path: %v", got)
	}
}
