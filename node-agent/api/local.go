package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Local returns a client of a server in the same process: a call is a function call, and no message
// is encoded. Both sides share the messages, so neither may change them.
func Local(server NodeServer) NodeClient { return local{server} }

type local struct{ server NodeServer }

func (l local) Start(ctx context.Context, in *StartRequest,
	_ ...grpc.CallOption) (*StartReply, error) {
	return l.server.Start(ctx, in)
}

func (l local) Init(ctx context.Context, in *InitRequest,
	_ ...grpc.CallOption) (*StartReply, error) {
	return l.server.Init(ctx, in)
}

func (l local) Run(ctx context.Context, in *RunRequest, _ ...grpc.CallOption) (*RunReply, error) {
	return l.server.Run(ctx, in)
}

// Runs is for clients to which a call costs something.
func (l local) Runs(context.Context,
	...grpc.CallOption) (grpc.BidiStreamingClient[RunsRequest, RunsReply], error) {
	return nil, status.Error(codes.Unimplemented,
		"a node in the same process has no use for a stream")
}

func (l local) Pause(ctx context.Context, in *PauseRequest,
	_ ...grpc.CallOption) (*PauseReply, error) {
	return l.server.Pause(ctx, in)
}

func (l local) Publish(ctx context.Context, in *PublishRequest,
	_ ...grpc.CallOption) (*PublishReply, error) {
	return l.server.Publish(ctx, in)
}

func (l local) Exec(ctx context.Context, in *ExecRequest,
	_ ...grpc.CallOption) (*ExecReply, error) {
	return l.server.Exec(ctx, in)
}

func (l local) Renew(ctx context.Context, in *RenewRequest,
	_ ...grpc.CallOption) (*RenewReply, error) {
	return l.server.Renew(ctx, in)
}

func (l local) Resume(ctx context.Context, in *ResumeRequest,
	_ ...grpc.CallOption) (*ResumeReply, error) {
	return l.server.Resume(ctx, in)
}

func (l local) Stop(ctx context.Context, in *StopRequest,
	_ ...grpc.CallOption) (*StopReply, error) {
	return l.server.Stop(ctx, in)
}

func (l local) Status(ctx context.Context, in *StatusRequest,
	_ ...grpc.CallOption) (*StatusReply, error) {
	return l.server.Status(ctx, in)
}

func (l local) Starts(ctx context.Context, in *StartsRequest,
	_ ...grpc.CallOption) (*StartsReply, error) {
	return l.server.Starts(ctx, in)
}

func (l local) Drain(ctx context.Context, in *DrainRequest,
	_ ...grpc.CallOption) (*DrainReply, error) {
	return l.server.Drain(ctx, in)
}

func (l local) Report(ctx context.Context, in *ReportRequest,
	_ ...grpc.CallOption) (*ReportReply, error) {
	return l.server.Report(ctx, in)
}
