package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// What a node has at once. Each connection holds a descriptor or some memory; one that finds no
// descriptor fails alone. Readers of logs are counted apart, so they keep nobody from connecting.
const (
	mostConnections = 16 << 10
	mostReaders     = 4 << 10
)

// enterStream counts a stream, which leaves when it has ended.
func enterStream(all *atomic.Int64, most int64, of string) (leave func(), err error) {
	if all.Add(1) > most {
		all.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted,
			"the node has %d %s already; close some", most, of)
	}
	return func() { all.Add(-1) }, nil
}

// A caller is the stream of a Connect.
type caller = grpc.BidiStreamingServer[api.ConnectRequest, api.ConnectReply]

// Connect implements api.NodeServer.
func (a *Agent) Connect(stream caller) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Port < 1 || first.Port > 65535 {
		return status.Errorf(codes.InvalidArgument, "port %d: want 1 to 65535", first.Port)
	}
	leave, err := enterStream(&a.connections, mostConnections, "connections")
	if err != nil {
		return err
	}
	defer leave()
	st, cold, err := a.claim(stream.Context(), first.Id)
	if err != nil {
		return err
	}
	answered := once(cold.run())
	conn, err := st.Dial(stream.Context(), int(first.Port))
	if err != nil {
		answered(err)
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return status.Errorf(codes.ResourceExhausted, "the node has no more descriptors, for "+
				"sandbox %s: %v; close some connections", first.Id, err)
		}
		return runError(first.Id, st, fmt.Errorf("%w: %w", sandbox.ErrUnreached, err))
	}
	defer answered(errUnanswered)
	defer conn.Close()
	defer context.AfterFunc(stream.Context(), func() { conn.Close() })()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	asked := make(chan error, 1)
	go func() {
		err := upward(conn, stream, first)
		asked <- err
		if err != nil {
			conn.Close()
		}
	}()
	if err := downward(stream, conn, answered); err != nil {
		select {
		case broken := <-asked:
			if broken != nil {
				return broken
			}
		default:
		}
		return runError(first.Id, st, err)
	}
	select { // the sandbox has said all; the caller may have not
	case err := <-asked:
		return err
	case <-st.Done():
		return status.Errorf(codes.NotFound, "sandbox %s has ended", first.Id)
	}
}

// errUnanswered is why a start came to nothing whose call was not answered.
var errUnanswered = errors.New("the connection ended before a byte of an answer had come")

// once returns a function that tells answered of the first end alone.
func once(answered func(error)) func(error) {
	var first sync.Once
	return func(err error) { first.Do(func() { answered(err) }) }
}

// upward passes on what the caller sends. A sandbox that takes no more may still send.
func upward(conn net.Conn, stream caller, in *api.ConnectRequest) error {
	for taken := true; ; {
		if len(in.Data) > api.MostData {
			return status.Errorf(codes.InvalidArgument,
				"a message of %d bytes; at most %d", len(in.Data), api.MostData)
		}
		if taken && len(in.Data) > 0 {
			_, err := conn.Write(in.Data)
			taken = err == nil
		}
		var err error
		if in, err = stream.Recv(); errors.Is(err, io.EOF) {
			if half, can := conn.(interface{ CloseWrite() error }); can {
				_ = half.CloseWrite() // where it cannot be told, it has gone
			}
			return nil
		} else if err != nil {
			return err
		}
	}
}

// downward passes on what the sandbox sends, until it sends no more. Its first byte answers the
// call that the sandbox was started for, if this is that call.
func downward(stream caller, conn net.Conn, answered func(error)) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			answered(nil)
			data := append([]byte(nil), buffer[:n]...) // in one process the message is not copied
			if err := stream.Send(&api.ConnectReply{Data: data}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return stream.Send(&api.ConnectReply{End: true})
		} else if err != nil {
			return err
		}
	}
}

// Logs implements api.NodeServer.
func (a *Agent) Logs(req *api.LogsRequest, stream grpc.ServerStreamingServer[api.LogsReply]) error {
	leave, err := enterStream(&a.readers, mostReaders, "readers of logs")
	if err != nil {
		return err
	}
	defer leave()
	st, err := a.find(stream.Context(), req.Id)
	if err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // its program may write nothing for long
		return err
	}
	if !req.Follow {
		for _, line := range st.Logs().Lines() {
			if err := stream.Send(&api.LogsReply{Line: logLine(line)}); err != nil {
				return err
			}
		}
		return nil
	}
	for lines := st.Logs().Read(); ; {
		line, missed, err := lines.Next(stream.Context())
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return status.FromContextError(err).Err()
		}
		reply := &api.LogsReply{Missed: missed, Line: logLine(line)}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}
