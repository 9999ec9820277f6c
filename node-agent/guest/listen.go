// Package guest is the agent's side of the conversation with the guests' process 1
// (node-agent/guest/init), in the messages of node-agent/guest/wire.
//
//	Listen ── Expect(cid) ── the guest dials ── Hello ── Configure ── Ready ── Logs … Logs ── Done
//	                             │ pings map its clock        │ Spans, Steps
//
// A guest is known by its vsock CID, which the host kernel vouches for. A caller from a CID that
// nobody expects is hung up on. After that nothing a guest says is trusted. Messages have a bound.
// So have the spans, steps and log lines kept of one guest, and the rates at which it, and all
// guests together, are listened to. A guest names no stage but its own. Its times are held between
// the moment it was expected and the moment they were heard. Each guest has its own goroutine, so
// that it can slow down only itself.
package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A Transport accepts guests' connections, each with the CID of its guest.
type Transport interface {
	Accept() (net.Conn, uint32, error)
	Close() error
}

// A Listener takes the calls of all guests of one agent.
type Listener struct {
	transport Transport
	node      *bucket
	accepting sync.WaitGroup

	mu       sync.Mutex
	expected map[uint32]*Conn
	closed   bool
}

// Listen takes the calls of guests on the control port of this host's vsock.
func Listen() (*Listener, error) {
	// Any CID: a host that is a guest itself has a CID of its own beside 2, and would be given that
	// one.
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, wire.ControlPort, nil)
	if err != nil {
		return nil, fmt.Errorf(
			"vsock port %d, where guests call, cannot be listened on (is vhost_vsock loaded, does another agent run?): %w",
			wire.ControlPort, err)
	}
	return On(vsockTransport{l}), nil
}

// On takes the calls of guests that come over transport.
func On(transport Transport) *Listener {
	l := &Listener{
		transport: transport, node: newBucket(nodeRate, nodeBurst), expected: map[uint32]*Conn{},
	}
	l.accepting.Go(l.accept)
	return l
}

// Expect announces the guest with this CID before it is started. The Conn must be closed.
func (l *Listener) Expect(cid uint32) (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	if l.expected[cid] != nil {
		return nil, fmt.Errorf("vsock CID %d belongs to another sandbox of this agent", cid)
	}
	var c *Conn
	c = newConn(func() { l.forget(cid, c) }, l.node)
	l.expected[cid] = c
	return c, nil
}

// Close hangs up on all guests and returns when nothing of the listener runs. It may run twice.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true
	conns := make([]*Conn, 0, len(l.expected))
	for _, c := range l.expected {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	l.transport.Close()
	l.accepting.Wait()
	for _, c := range conns {
		c.Close()
	}
}

// forget frees the CID, unless it was freed before and is another's by now.
func (l *Listener) forget(cid uint32, c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expected[cid] == c {
		delete(l.expected, cid)
	}
}

func (l *Listener) accept() {
	for {
		nc, cid, err := l.transport.Accept()
		switch {
		case err == nil:
			l.hand(nc, cid)
		case l.isClosed() || errors.Is(err, net.ErrClosed):
			return
		// Most likely descriptors or memory are short. Until that passes, starts fail by their own
		// deadline.
		default:
			slog.Warn("a guest's call could not be taken; trying again", "err", err)
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// hand gives a connection to the guest it comes from. It hangs up on one from an unknown guest, and
// on a second one while the first is alive.
func (l *Listener) hand(nc net.Conn, cid uint32) {
	l.mu.Lock()
	c := l.expected[cid]
	l.mu.Unlock()
	if c == nil || !c.attach(nc) {
		nc.Close()
	}
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

type vsockTransport struct{ *vsock.Listener }

func (t vsockTransport) Accept() (net.Conn, uint32, error) {
	nc, err := t.Listener.Accept()
	if err != nil {
		return nil, 0, err
	}
	addr, ok := nc.RemoteAddr().(*vsock.Addr)
	if !ok {
		nc.Close()
		return nil, 0, fmt.Errorf("a vsock connection without a CID: %v", nc.RemoteAddr())
	}
	return nc, addr.ContextID, nil
}
