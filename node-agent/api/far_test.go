package api

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// knock connects as a client of that configuration, and returns why it is not served.
func knock(t *testing.T, address string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	conn := tls.Client(raw, config)
	if err = raw.SetDeadline(time.Now().Add(time.Minute)); err == nil {
		err = conn.Handshake()
	}
	if err == nil { // the server's settings come, once it has taken our certificate
		_, err = io.ReadFull(conn, make([]byte, 9))
	}
	return conn, err
}

// A client that opens connections without end gets no more than a user of this machine, and keeps
// no other out that shares its address.
func TestTheConnectionsOfAClientAreBounded(t *testing.T) {
	ours := newAuthority(t)
	s, err := NewTLSServer(server{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	config, err := ours.keys("invoker", ours).config()
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName, config.NextProtos = "127.0.0.1", []string{"h2"}
	var first *tls.Conn
	for range mostConns {
		conn, err := knock(t, address, config)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = conn
		}
	}
	again := func() error {
		conn, err := knock(t, address, config)
		conn.Close()
		return err
	}
	if again() == nil {
		t.Errorf("%d connections of one client", mostConns+1)
	}
	if err := ask(t, address, ours.keys("other", ours)); err != nil {
		t.Errorf("another client at the same address: %v", err)
	}
	first.Close()
	for again() != nil { // until the node has seen that it is gone
	}
}

// Strangers who connect and say nothing keep nobody out who shares their address.
func TestStrangersKeepNobodyOut(t *testing.T) {
	ours := newAuthority(t)
	s, err := NewTLSServer(server{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	var first net.Conn
	for range mostConns + 1 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if first == nil {
			first = conn
		}
	}
	if err := ask(t, address, ours.keys("invoker", ours)); err != nil {
		t.Errorf("beside %d strangers: %v", mostConns+1, err)
	}
	if err := first.SetDeadline(time.Now().Add(silence / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, first); err != nil {
		t.Errorf("the first of %d strangers stays: %v", mostConns+1, err)
	}
}

// Who connects and says nothing is hung up on.
func TestAStrangerWhoSaysNothingIsHungUpOn(t *testing.T) {
	ours := newAuthority(t)
	s, err := NewTLSServer(server{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", serve(t, "tcp", "127.0.0.1:0", s))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * silence)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("after %v: %v", 2*silence, err)
	}
}

func TestWhoseAnAddressIs(t *testing.T) {
	for at, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8::7": "2001:db8::/64",
		"fe80::1%eth0": "fe80::/64",
	} {
		if got := machineOf(netip.MustParseAddr(at)); got != want {
			t.Errorf("%s is of %s, want %s", at, got, want)
		}
	}
}

// What keeps renewed files from being used is logged once for each reason, and once that they are.
func TestRenewedKeysThatCannotBeUsedAreLogged(t *testing.T) {
	ours := newAuthority(t)
	keys := ours.keys("node", ours)
	read := func(file string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	good, other := read(keys.Cert), read(ours.keys("other", ours).Cert)
	var log strings.Builder
	s, err := NewTLSServer(server{}, keys, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	mine := ours.keys("invoker", ours)
	for _, c := range []struct {
		cert, logs string
	}{
		{good, ""},
		{"half", "failed to find any PEM data"},
		{"half", ""},
		{other, "private key does not match"},
		{good, "are used"},
		{good, ""},
	} {
		log.Reset()
		if err := os.WriteFile(keys.Cert, []byte(c.cert), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ask(t, address, mine); err != nil {
			t.Fatal(err)
		}
		said := log.String()
		if !strings.Contains(said, c.logs) || strings.Count(said, "\n") != min(1, len(c.logs)) {
			t.Errorf("with %.10q: %q", c.cert, said)
		}
	}
}

// An invoker has one set of files for all its nodes: what is wrong with it is logged once.
func TestKeysForManyNodesAreLoggedOnce(t *testing.T) {
	ours := newAuthority(t)
	s, err := NewTLSServer(server{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	var log strings.Builder
	mine := ours.keys("invoker", ours)
	mine.Log = slog.New(slog.NewTextHandler(&log, nil))
	var nodes []NodeClient
	for range 3 {
		node, hangUp, err := Dial(address, mine)
		if err != nil {
			t.Fatal(err)
		}
		defer hangUp()
		nodes = append(nodes, node)
	}
	if err := os.WriteFile(mine.Cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if _, err := node.Status(t.Context(), &StatusRequest{}); err != nil {
			t.Error(err)
		}
	}
	if said := log.String(); strings.Count(said, "\n") != 1 {
		t.Errorf("of %d nodes: %q", len(nodes), said)
	}
}
