package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Most of what a warm call costs over a Unix socket is HTTP/2 and the goroutines that gRPC passes
// it through. So there runs have a connection of their own, which begins with a greeting that no
// HTTP/2 client sends and then carries frames: four bytes of length, big endian, and a RunsRequest
// or, from the node, a RunsReply. An empty frame asks whether the node is there; an empty one
// answers. The node greets back before it answers. One of an earlier version does not, and gets
// the gRPC stream.
//
// Who sends leaves a frame, and waits only where the peer takes nothing. A goroutine begins when
// there is a first one, and writes until none is left: what comes meanwhile goes by one write.

// greeting is as long as HTTP/2's own: an earlier version's server does not wait for more.
const greeting = "fastiov runs, version 1\n"

const (
	lengthBytes = 4
	readAhead   = 64 << 10
	mostUnsent  = 1 << 20   // bytes; a sender waits while more are unsent
	mostKept    = 256 << 10 // bytes of a buffer that is used again
)

// errNoFrames says that a node knows gRPC alone.
var errNoFrames = errors.New("the node carries no frames")

// frames is one end of a connection.
type frames struct {
	conn  net.Conn
	in    *bufio.Reader
	heard atomic.Bool // something has come since it was last asked

	mu      sync.Mutex
	room    sync.Cond // less is unsent, or the connection has ended
	unsent  []byte
	spare   []byte // the other buffer
	writing bool   // a goroutine writes, and goes on until nothing is unsent
	err     error  // why it has ended
}

func newFrames(conn net.Conn) *frames {
	f := &frames{conn: conn, in: bufio.NewReaderSize(conn, readAhead)}
	f.room.L = &f.mu
	return f
}

// send is for many at once. It returns before the frame is written.
func (f *frames) send(m proto.Message) error {
	f.mu.Lock()
	for len(f.unsent) > mostUnsent && f.err == nil {
		f.room.Wait()
	}
	if f.err != nil {
		defer f.mu.Unlock()
		return f.err
	}
	begin := len(f.unsent)
	whole, err := proto.MarshalOptions{}.MarshalAppend(append(f.unsent, 0, 0, 0, 0), m)
	if err != nil {
		f.mu.Unlock()
		return f.end(err)
	}
	binary.BigEndian.PutUint32(whole[begin:], uint32(len(whole)-begin-lengthBytes))
	f.unsent = whole
	f.begin()
	f.mu.Unlock()
	return nil
}

// probe sends an empty frame, and waits for nobody.
func (f *frames) probe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsent = append(f.unsent, 0, 0, 0, 0)
	f.begin()
}

func (f *frames) begin() {
	if !f.writing {
		f.writing = true
		go f.write()
	}
}

func (f *frames) write() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.unsent) > 0 && f.err == nil {
		f.mu.Unlock()
		runtime.Gosched() // whoever is about to send joins in: a write costs more than that
		f.mu.Lock()
		out := f.unsent
		f.unsent, f.spare = f.spare[:0], nil
		f.mu.Unlock()
		_, err := f.conn.Write(out)
		f.mu.Lock()
		if err != nil && f.err == nil {
			f.err = err
			f.conn.Close()
		}
		if cap(out) <= mostKept {
			f.spare = out
		}
		f.room.Broadcast()
	}
	f.writing = false
}

// end closes the connection and returns why it ended first.
func (f *frames) end(why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = why
	}
	f.conn.Close()
	f.room.Broadcast()
	return f.err
}

// receive reads the next message, and what is empty: m is as it was then. An error ends the
// connection.
func (f *frames) receive(m proto.Message) (empty bool, err error) {
	content, err := f.next()
	if err == nil && len(content) > 0 {
		err = proto.Unmarshal(content, m)
	}
	if err != nil {
		return false, f.end(err)
	}
	return len(content) == 0, nil
}

// next returns what is in the next frame, which stays as it is until the one after.
func (f *frames) next() ([]byte, error) {
	head, err := f.in.Peek(lengthBytes)
	if err != nil {
		if len(head) > 0 {
			err = torn(err)
		}
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(head))
	if length > maxMessage {
		return nil, fmt.Errorf("a frame of %d bytes; the most is %d", length, maxMessage)
	}
	_, _ = f.in.Discard(lengthBytes) // which were seen
	if length > f.in.Size() {
		var large bytes.Buffer // it grows by what comes, not by what was announced
		if _, err := io.CopyN(&large, f.in, int64(length)); err != nil {
			return nil, torn(err)
		}
		return large.Bytes(), nil
	}
	content, err := f.in.Peek(length)
	if err != nil {
		return nil, torn(err)
	}
	_, _ = f.in.Discard(length)
	return content, nil
}

// torn is the error of a connection that ended within a frame.
func torn(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// toNode carries runs to a node.
type toNode struct {
	*frames
	ctx    context.Context
	socket string
}

// dialFrames connects until ctx ends.
func dialFrames(ctx context.Context, socket string) (*toNode, error) {
	conn, err := (&net.Dialer{Timeout: silence}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "node %s: %v", socket, err)
	}
	f := newFrames(conn)
	context.AfterFunc(ctx, func() { _ = f.end(context.Canceled) })
	if err := f.greet(); err != nil {
		conn.Close()
		if !errors.Is(err, errNoFrames) {
			err = status.Errorf(codes.Unavailable, "node %s: %v", socket, err)
		}
		return nil, err
	}
	tick := time.NewTicker(silence)
	context.AfterFunc(ctx, tick.Stop)
	go f.watch(ctx, tick.C)
	return &toNode{f, ctx, socket}, nil
}

// greet tells a node that runs come as frames.
func (f *frames) greet() error {
	if err := f.conn.SetDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	answer := make([]byte, len(greeting))
	_, err := io.WriteString(f.conn, greeting)
	if err == nil {
		_, err = io.ReadFull(f.in, answer)
	}
	var slow net.Error
	switch {
	case errors.As(err, &slow) && slow.Timeout():
		return fmt.Errorf("it has not greeted within %v", silence)
	case err != nil || string(answer) != greeting: // it has hung up, or speaks HTTP/2
		return errNoFrames
	}
	return f.conn.SetDeadline(time.Time{})
}

// watch hangs up on a node that says nothing, not even that it is there, as gRPC does.
func (f *frames) watch(ctx context.Context, tick <-chan time.Time) {
	for asked := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		switch {
		case f.heard.Swap(false):
			asked = false
		case asked:
			_ = f.end(fmt.Errorf("it has said nothing for %v", 2*silence))
			return
		default:
			asked = true
			f.probe()
		}
	}
}

// Send implements carrier.
func (n *toNode) Send(in *RunsRequest) error { return n.send(in) }

// Recv implements carrier.
func (n *toNode) Recv() (*RunsReply, error) {
	for {
		reply := &RunsReply{}
		empty, err := n.receive(reply)
		switch {
		case n.ctx.Err() != nil:
			return nil, status.FromContextError(n.ctx.Err()).Err()
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case err != nil:
			return nil, status.Errorf(codes.Unavailable, "node %s: %v", n.socket, err)
		}
		n.heard.Store(true)
		if !empty {
			return reply, nil
		}
	}
}

// toInvoker carries answers.
type toInvoker struct{ *frames }

// Send implements asker.
func (i toInvoker) Send(out *RunsReply) error { return i.send(out) }

// Recv implements asker.
func (i toInvoker) Recv() (*RunsRequest, error) {
	for {
		in := &RunsRequest{}
		empty, err := i.receive(in)
		if err != nil || !empty {
			return in, err
		}
		if err := i.send(&RunsReply{}); err != nil { // it is there
			return nil, err
		}
	}
}
