package agent

import (
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// firstHostPort is the first port of the host that may lead to a sandbox: those below are for
// services of the host.
const firstHostPort = 1024

// Publish implements api.NodeServer.
func (a *Agent) Publish(
	ctx context.Context, req *api.PublishRequest,
) (*api.PublishReply, error) {
	switch {
	case req.Protocol != "tcp" && req.Protocol != "udp":
		return nil, status.Errorf(codes.InvalidArgument, "protocol %q: want tcp or udp",
			req.Protocol)
	case req.Port < 1 || req.Port > math.MaxUint16:
		return nil, status.Errorf(codes.InvalidArgument, "port %d: want 1 to 65535", req.Port)
	case req.HostPort < firstHostPort || req.HostPort > math.MaxUint16:
		return nil, status.Errorf(codes.InvalidArgument, "port %d of the host: want %d to 65535",
			req.HostPort, firstHostPort)
	}
	st, err := a.find(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	err = a.Starter.Admission.Publish(st.Grant, startup.Publication{Protocol: req.Protocol,
		HostPort: uint16(req.HostPort), Port: uint16(req.Port)})
	switch {
	case errors.Is(err, startup.ErrTaken):
		return nil, status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, startup.ErrUnpublished):
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %s: %v", req.Id, err)
	case err != nil:
		return nil, status.Errorf(codes.Internal, "sandbox %s: %v", req.Id, err)
	}
	return &api.PublishReply{}, nil
}
