package api

import (
	"bufio"
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
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Most of what a warm call costs over a Unix socket is HTTP/2 and the goroutines that gRPC passes
// it through. So there runs have a connection of their own. It begins with a greeting that no
// HTTP/2 client sends and then carries frames: four bytes of length, big endian, and a RunsRequest
// or, from the node, a RunsReply. An empty frame asks whether the node is there; an empty one
// answers. The node greets back before it answers. A node of an earlier version does not, and gets
// the gRPC stream.
//
// A sender leaves a frame to be written, and waits only if the peer takes nothing. The first frame
// starts a goroutine, which writes until none is left: frames that come meanwhile go by one write.
//
// A node has a budget of bytes for all of its connections. A large frame takes its bytes there
// before it is read; where too few are left, it is skipped and its run refused. They are given back
// when the answer has been written. A peer that stalls within a frame, or takes nothing of what is
// written, is hung up on, and holds none any longer.

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
	conn   net.Conn
	in     *bufio.Reader
	budget *budget       // a node's
	heard  atomic.Bool   // something has come since it was last asked
	parts  uint64        // of frames that had to be waited for
	coming atomic.Uint64 // the part that is waited for; 0: none

	mu      sync.Mutex
	room    sync.Cond // less is unsent, or the connection has ended
	unsent  []byte
	held    int    // of the budget, by unsent frames
	spare   []byte // the other buffer
	writing bool   // a goroutine writes, and goes on until nothing is unsent
	writes  uint64 // so far, with the one under way
	err     error  // why it has ended
}

func newFrames(conn net.Conn, budget *budget) *frames {
	f := &frames{conn: conn, in: bufio.NewReaderSize(conn, readAhead), budget: budget}
	f.room.L = &f.mu
	return f
}

// send is for many at once. It returns before the frame is written; when it is, or cannot be, held
// is given back to the budget.
func (f *frames) send(m proto.Message, held int) error {
	f.mu.Lock()
	for len(f.unsent) > mostUnsent && f.err == nil {
		f.room.Wait()
	}
	if f.err != nil {
		defer f.mu.Unlock()
		f.budget.give(held)
		return f.err
	}
	begin := len(f.unsent)
	whole, err := proto.MarshalOptions{}.MarshalAppend(append(f.unsent, 0, 0, 0, 0), m)
	if err != nil {
		f.mu.Unlock()
		f.budget.give(held)
		return f.end(err)
	}
	binary.BigEndian.PutUint32(whole[begin:], uint32(len(whole)-begin-lengthBytes))
	f.unsent = whole
	f.held += held
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
		// Let other goroutines that are about to send join in: a write costs more than that.
		runtime.Gosched()
		f.mu.Lock()
		out, held := f.unsent, f.held
		f.unsent, f.spare, f.held = f.spare[:0], nil, 0
		f.writes++
		f.mu.Unlock()
		_, err := f.conn.Write(out)
		f.budget.give(held)
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
	f.budget.give(f.held)
	f.held = 0
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

// receive reads the next message. empty says that the frame was empty; m is unchanged then. A large
// message holds a part of the budget. An error ends the connection, except the one for a message
// that found no room.
func (f *frames) receive(m proto.Message) (empty bool, held int, err error) {
	content, held, err := f.next()
	if err == nil && len(content) > 0 {
		err = proto.Unmarshal(content, m)
	}
	if err == nil {
		return len(content) == 0, held, nil
	}
	if crowded := (*noRoom)(nil); errors.As(err, &crowded) {
		return false, 0, crowded
	}
	f.budget.give(held)
	return false, 0, f.end(err)
}

// noRoom is the error of a frame that was skipped, with the run's number.
type noRoom struct{ number uint64 }

func (n *noRoom) Error() string { return errNoRoom.Error() }

// next returns the content of the next frame, which stays as it is until the one after.
func (f *frames) next() (content []byte, held int, err error) {
	if _, err := f.in.Peek(1); err != nil {
		return nil, 0, err // between frames it may take as long as it likes
	}
	if f.in.Buffered() < lengthBytes {
		defer f.part()()
	}
	head, err := f.in.Peek(lengthBytes)
	if err != nil {
		return nil, 0, torn(err)
	}
	length := int(binary.BigEndian.Uint32(head))
	if length > maxMessage {
		return nil, 0, fmt.Errorf("a frame of %d bytes; the most is %d", length, maxMessage)
	}
	_, _ = f.in.Discard(lengthBytes) // which were seen
	if length > f.in.Size() {
		return f.large(length)
	}
	if f.in.Buffered() < length {
		defer f.part()()
	}
	content, err = f.in.Peek(length)
	if err != nil {
		return nil, 0, torn(err)
	}
	_, _ = f.in.Discard(length)
	return content, 0, nil
}

// part notes that a part of a frame is waited for, until came is called.
func (f *frames) part() (came func()) {
	f.parts++
	f.coming.Store(f.parts)
	return func() { f.coming.Store(0) }
}

// large reads a frame if the budget has its bytes, or skips it. The buffer grows by the bytes that
// come, not by the length that was announced.
func (f *frames) large(length int) (content []byte, held int, err error) {
	if f.budget != nil {
		held = length + runCost
		if !f.budget.take(held) {
			return nil, 0, f.skip(length)
		}
	}
	defer f.part()()
	for len(content) < length {
		if len(content) == cap(content) {
			grown := make([]byte, len(content), min(max(2*cap(content), f.in.Size()), length))
			copy(grown, content)
			content = grown
		}
		n, err := f.in.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		if err != nil {
			return nil, held, torn(err)
		}
	}
	return content, held, nil
}

// skip passes over a frame and says which run it was: its number comes first.
func (f *frames) skip(length int) error {
	defer f.part()()
	head, err := f.in.Peek(binary.MaxVarintLen64 + 1)
	if err != nil {
		return torn(err)
	}
	field, kind, tag := protowire.ConsumeTag(head)
	number, _ := protowire.ConsumeVarint(head[max(tag, 0):])
	if field != 1 || kind != protowire.VarintType {
		number = 0 // as it is where it is left out
	}
	if _, err := f.in.Discard(length); err != nil {
		return torn(err)
	}
	return &noRoom{number}
}

// guard hangs up on a peer that takes longer than from one look to the next for a part of a frame,
// or for the bytes written to it.
func (f *frames) guard(ended <-chan struct{}, tick <-chan time.Time) {
	var coming, going uint64
	for {
		select {
		case <-ended:
			return
		case <-tick:
		}
		part, write := f.coming.Load(), f.going()
		switch {
		case part != 0 && part == coming:
			_ = f.end(fmt.Errorf("it has stalled within a frame for %v", silence))
			return
		case write != 0 && write == going:
			_ = f.end(fmt.Errorf("it has taken no answer for %v", silence))
			return
		}
		coming, going = part, write
	}
}

// going is the write under way; 0: none.
func (f *frames) going() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.writing {
		return 0
	}
	return f.writes
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
	f := newFrames(conn, nil)
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
func (n *toNode) Send(in *RunsRequest) error { return n.send(in, 0) }

// Recv implements carrier.
func (n *toNode) Recv() (*RunsReply, error) {
	for {
		reply := &RunsReply{}
		empty, _, err := n.receive(reply)
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
func (i toInvoker) Send(out *RunsReply, held int) { _ = i.send(out, held) }

// Recv implements asker.
func (i toInvoker) Recv() (*RunsRequest, int, error) {
	for {
		in := &RunsRequest{}
		empty, held, err := i.receive(in)
		if err == nil && !empty {
			return in, held, nil
		}
		if err == nil {
			err = i.send(&RunsReply{}, 0) // it is there
		} else if crowded := (*noRoom)(nil); errors.As(err, &crowded) {
			err = i.send(replyTo(crowded.number, nil, errNoRoom), 0)
		}
		if err != nil {
			return nil, 0, err
		}
	}
}
