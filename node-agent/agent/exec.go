package agent

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// longestExec bounds a program that is run beside a sandbox's own.
const longestExec = time.Minute

// Exec implements api.NodeServer.
func (a *Agent) Exec(ctx context.Context, req *api.ExecRequest) (*api.ExecReply, error) {
	if len(req.Command) == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "sandbox %s: no command; name a program",
			req.Id)
	}
	st, err := a.find(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	box, can := st.Sandbox.(sandbox.Executor)
	if !can {
		return nil, status.Errorf(codes.Unimplemented,
			"sandbox %s: its driver runs no second program in a sandbox", req.Id)
	}
	within := longestExec
	if asked := time.Duration(req.TimeoutMs) * time.Millisecond; asked > 0 {
		within = min(asked, longestExec)
	}
	running, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	exit, err := box.Exec(running, req.Command)
	switch {
	case err == nil:
		return &api.ExecReply{Status: int32(exit)}, nil
	case errors.Is(err, sandbox.ErrBusy):
		return nil, status.Errorf(codes.ResourceExhausted, "sandbox %s: %v", req.Id, err)
	case ctx.Err() == nil && running.Err() != nil:
		return &api.ExecReply{Late: true}, nil
	}
	return nil, status.Errorf(codes.Aborted, "sandbox %s: %v", req.Id, err)
}
