package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// drainFile says by being there that the node drains, to the next agent too.
func (a *Agent) drainFile() string { return filepath.Join(a.Starter.RunDir, "draining") }

// noteDrain keeps for the next agent what req asks for.
func (a *Agent) noteDrain(req *api.DrainRequest) error {
	var err error
	switch {
	case req.Undo:
		err = os.Remove(a.drainFile())
	case !req.Once:
		err = os.WriteFile(a.drainFile(), nil, 0o644)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) && req.Undo {
		return nil
	}
	return status.Errorf(codes.Internal,
		"whether the node drains cannot be noted: %v; make that possible", err)
}

// drain makes the node drain, or not any more. The caller holds mu, or is New.
func (a *Agent) drain(draining bool) {
	a.draining = draining
	says := healthpb.HealthCheckResponse_SERVING
	if draining {
		says = healthpb.HealthCheckResponse_NOT_SERVING
	}
	a.health.SetServingStatus("", says)
}

// Health returns the server that answers gRPC's health checks. A node that drains does not serve.
func (a *Agent) Health() *health.Server { return a.health }

// Ready tells why nothing should be sent here now.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return errDrains
	}
	return nil
}

var errDrains = errors.New(
	"the node drains and takes no new sandboxes; `fastiov drain --undo` lets it")

// Drain implements api.NodeServer.
func (a *Agent) Drain(ctx context.Context, req *api.DrainRequest) (*api.DrainReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.noteDrain(req); err != nil {
		return nil, err
	}
	a.drain(!req.Undo)
	if req.Undo {
		a.undone++
		a.changed.Broadcast()
		return &api.DrainReply{}, nil
	}
	reply := &api.DrainReply{Stopped: uint32(len(a.sandboxes))}
	before := a.undone
	undone := func() bool { return a.undone != before }
	err := a.await(ctx, func() bool {
		if undone() {
			return true
		}
		for id := range a.sandboxes {
			if req.Cancel {
				a.end(id, "the node was drained")
			}
		}
		return len(a.sandboxes) == 0
	})
	switch {
	case undone():
		return nil, status.Error(codes.Aborted,
			"the drain was undone before the last sandbox had gone; drain again if it should go on")
	case err != nil:
		return nil, status.Errorf(codes.DeadlineExceeded,
			"%d sandboxes still run; give more time, or --cancel to end them", len(a.sandboxes))
	}
	return reply, nil
}
