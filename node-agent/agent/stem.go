package agent

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// Init implements api.NodeServer.
func (a *Agent) Init(ctx context.Context, req *api.InitRequest) (*api.StartReply, error) {
	st, err := a.find(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	cold := a.starts.begin(req.Id, req.Call)
	done, err := a.Starter.Init(ctx, st, req.Init, &cold.Timeline)
	if err != nil {
		cold.failed(err)
		return nil, runError(req.Id, st, err)
	}
	reply := a.startReply(req.Id, st)
	reply.Spans, reply.InitStatus, reply.InitReply = spans(done.Spans), int32(done.Status),
		done.Reply
	reply.Memory = nil // that of its start, which nobody waited for
	cold.ready(reply.Nic)
	if done.Status != http.StatusOK {
		cold.failed(badInit(done.Status))
		reply.Logs = refusalLogs(ctx, st)
		_, err = a.Stop(ctx, &api.StopRequest{Id: req.Id})
		return reply, err
	}
	a.awaitCall(req.Id, cold)
	return reply, nil
}

// Pause implements api.NodeServer.
func (a *Agent) Pause(ctx context.Context, req *api.PauseRequest) (*api.PauseReply, error) {
	return &api.PauseReply{}, a.turn(ctx, req.Id, paused, (*startup.Started).Pause)
}

// Resume implements api.NodeServer.
func (a *Agent) Resume(ctx context.Context, req *api.ResumeRequest) (*api.ResumeReply, error) {
	return &api.ResumeReply{}, a.turn(ctx, req.Id, ready, (*startup.Started).Resume)
}

// turn does to a sandbox what brings it to state.
func (a *Agent) turn(ctx context.Context, id, state string,
	do func(*startup.Started, context.Context) error) error {
	st, err := a.find(ctx, id)
	if err != nil {
		return err
	}
	if err := do(st, ctx); err != nil {
		code := codes.Internal
		if errors.Is(err, sandbox.ErrComingUp) {
			code = codes.FailedPrecondition
		}
		return status.Errorf(code, "sandbox %s cannot become %s: %v", id, state, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.sandboxes[id]; e != nil && e.state != ending {
		e.become(state, "")
	}
	return nil
}
