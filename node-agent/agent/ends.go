package agent

import (
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// keepEnds bounds how many ends are remembered. A client that falls behind by more is told so.
const keepEnds = 1024

// ends holds the ends of the node's sandboxes for the clients that wait for them. A waiting client
// never holds up an end.
type ends struct {
	mu    sync.Mutex
	count uint64        // ends ever
	past  []*api.Ended  // the last of them
	more  chan struct{} // closed with the next one; nil: nobody waits
}

func (e *ends) add(end *api.Ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count++
	if len(e.past) == keepEnds {
		e.past = append(e.past[:0], e.past[1:]...)
	}
	e.past = append(e.past, end)
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// now returns how many sandboxes have ended so far.
func (e *ends) now() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

// after returns the ends that came after the first seen ones, and a channel that is closed with the
// next one. known is false if some of them are not remembered.
func (e *ends) after(seen uint64) (fresh []*api.Ended, more <-chan struct{}, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.more == nil {
		e.more = make(chan struct{})
	}
	n := e.count - seen
	if n > uint64(len(e.past)) {
		return nil, nil, false
	}
	return slices.Clone(e.past[len(e.past)-int(n):]), e.more, true
}

// of returns the end of a sandbox, if it is remembered.
func (e *ends) of(id string) *api.Ended {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range slices.Backward(e.past) {
		if end.Id == id {
			return end
		}
	}
	return nil
}

// Wait implements api.NodeServer.
func (a *Agent) Wait(req *api.WaitRequest, stream grpc.ServerStreamingServer[api.Ended]) error {
	a.mu.Lock()
	seen, is := a.ends.now(), a.sandboxes[req.Id] != nil
	a.mu.Unlock()
	if req.Id != "" && !is {
		if end := a.ends.of(req.Id); end != nil {
			return stream.Send(end)
		}
		return status.Errorf(codes.NotFound, "no sandbox %q on this node", req.Id)
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		fresh, more, known := a.ends.after(seen)
		if !known {
			return status.Errorf(codes.ResourceExhausted, "more than %d sandboxes have ended "+
				"since the last one that was taken; ask for the status, and wait again", keepEnds)
		}
		for _, end := range fresh {
			switch {
			case req.Id == "":
				if err := stream.Send(end); err != nil {
					return err
				}
			case req.Id == end.Id:
				return stream.Send(end)
			}
		}
		seen += uint64(len(fresh))
		select {
		case <-more:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
