package api

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Begun waits until the node has begun to serve a stream, and returns why it does not.
func Begun[R any](stream interface {
	Header() (metadata.MD, error)
	Recv() (*R, error)
}) error {
	header, err := stream.Header()
	if err == nil && header == nil {
		_, err = stream.Recv()
	}
	return err
}

// A stream is a gRPC stream within one process: Q goes to the server, R comes back. A sender waits
// until the other end receives.
type stream[Q, R any] struct {
	caller context.Context
	ctx    context.Context // the server's; it ends with the call
	there  chan *Q
	all    chan struct{} // closed when the caller sends no more
	back   chan *R
	header chan struct{} // closed when the server has sent it
	over   chan struct{} // closed when the server has returned
	err    error         // the error it ended with

	closing, heading sync.Once
}

// open calls a server, which serves by its end of the stream.
func open[Q, R any](caller context.Context, serve func(far[Q, R]) error) near[Q, R] {
	s := &stream[Q, R]{
		caller: caller, there: make(chan *Q), all: make(chan struct{}), back: make(chan *R),
		header: make(chan struct{}), over: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(caller)
	s.ctx = ctx
	go func() {
		defer cancel()
		s.err = serve(far[Q, R]{stream: s})
		close(s.over)
	}()
	return near[Q, R]{stream: s}
}

// end returns the caller's view of how the stream ended.
func (s *stream[Q, R]) end() error {
	if s.err == nil {
		return io.EOF
	}
	return status.Convert(s.err).Err()
}

// A near is the caller's end. It leaves out the methods of grpc.ClientStream that are not called
// here.
type near[Q, R any] struct {
	*stream[Q, R]
	grpc.ClientStream
}

func (n near[Q, R]) Send(q *Q) error {
	select {
	case n.there <- q:
		return nil
	case <-n.over:
		return io.EOF // Recv has the error
	case <-n.caller.Done():
		return io.EOF
	}
}

func (n near[Q, R]) Recv() (*R, error) {
	select {
	case r := <-n.back:
		return r, nil
	case <-n.over:
		return nil, n.end()
	case <-n.caller.Done():
		return nil, status.FromContextError(n.caller.Err()).Err()
	}
}

// Header returns nil where the stream has ended without one; Recv then has the reason.
func (n near[Q, R]) Header() (metadata.MD, error) {
	select {
	case <-n.header:
		return metadata.MD{}, nil
	case <-n.over:
		return nil, nil
	case <-n.caller.Done():
		return nil, status.FromContextError(n.caller.Err()).Err()
	}
}

func (n near[Q, R]) CloseSend() error {
	n.closing.Do(func() { close(n.all) })
	return nil
}

func (n near[Q, R]) Context() context.Context { return n.caller }

// A far is the server's end.
type far[Q, R any] struct {
	*stream[Q, R]
	grpc.ServerStream
}

func (f far[Q, R]) Recv() (*Q, error) {
	select {
	case q := <-f.there:
		return q, nil
	case <-f.all:
		return nil, io.EOF
	case <-f.ctx.Done():
		return nil, status.FromContextError(f.ctx.Err()).Err()
	}
}

func (f far[Q, R]) Send(r *R) error {
	if err := f.SendHeader(nil); err != nil {
		return err
	}
	select {
	case f.back <- r:
		return nil
	case <-f.ctx.Done():
		return status.FromContextError(f.ctx.Err()).Err()
	}
}

func (f far[Q, R]) SendHeader(metadata.MD) error {
	f.heading.Do(func() { close(f.header) })
	return nil
}

func (f far[Q, R]) Context() context.Context { return f.ctx }

// Wait implements NodeClient.
func (l local) Wait(
	ctx context.Context, in *WaitRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[Ended], error) {
	return open(ctx, func(s far[WaitRequest, Ended]) error { return l.server.Wait(in, s) }), nil
}

// Connect implements NodeClient.
func (l local) Connect(
	ctx context.Context, _ ...grpc.CallOption,
) (grpc.BidiStreamingClient[ConnectRequest, ConnectReply], error) {
	serve := func(s far[ConnectRequest, ConnectReply]) error { return l.server.Connect(s) }
	return open(ctx, serve), nil
}

// Logs implements NodeClient.
func (l local) Logs(
	ctx context.Context, in *LogsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[LogsReply], error) {
	return open(ctx, func(s far[LogsRequest, LogsReply]) error { return l.server.Logs(in, s) }), nil
}
