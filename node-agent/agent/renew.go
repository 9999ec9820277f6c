package agent

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Renew implements api.NodeServer.
func (a *Agent) Renew(ctx context.Context, req *api.RenewRequest) (*api.RenewReply, error) {
	all := mountsOf(req.Mounts)
	if err := wire.CheckMounts(all); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox %s: %v", req.Id, err)
	}
	st, err := a.find(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	box, can := st.Sandbox.(sandbox.Renewer)
	if !can {
		return nil, status.Errorf(codes.Unimplemented,
			"sandbox %s: its driver replaces no files of a program that runs", req.Id)
	}
	switch err := box.Renew(req.Sidecar, all); {
	case errors.Is(err, sandbox.ErrEnded):
		return nil, status.Errorf(codes.NotFound, "sandbox %s has ended", req.Id)
	case err != nil:
		return nil, status.Errorf(codes.Aborted, "sandbox %s: %v", req.Id, err)
	}
	return &api.RenewReply{}, nil
}
