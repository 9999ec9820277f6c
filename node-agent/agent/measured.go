package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Measured returns the agent with each of its calls timed and counted by how it ended, whether it
// comes over a socket or from this process.
func (a *Agent) Measured() api.NodeServer {
	return measured{a, a.Metrics.calls.WithLabelValues("Run", codes.OK.String())}
}

type measured struct {
	*Agent
	ran prometheus.Observer // observes every warm call, so it is looked up once
}

func timed[Q, R any](ctx context.Context, m *Metrics, method string, request Q,
	call func(context.Context, Q) (R, error)) (R, error) {
	begin := time.Now()
	reply, err := call(ctx, request)
	m.calls.WithLabelValues(method, status.Code(err).String()).Observe(time.Since(begin).Seconds())
	return reply, err
}

func (m measured) Start(ctx context.Context, in *api.StartRequest) (*api.StartReply, error) {
	return timed(ctx, m.Metrics, "Start", in, m.Agent.Start)
}

func (m measured) Init(ctx context.Context, in *api.InitRequest) (*api.StartReply, error) {
	return timed(ctx, m.Metrics, "Init", in, m.Agent.Init)
}

func (m measured) Run(ctx context.Context, in *api.RunRequest) (*api.RunReply, error) {
	begin := time.Now()
	reply, err := m.Agent.Run(ctx, in)
	took := m.ran
	if err != nil {
		took = m.Metrics.calls.WithLabelValues("Run", status.Code(err).String())
	}
	took.Observe(time.Since(begin).Seconds())
	return reply, err
}

func (m measured) Pause(ctx context.Context, in *api.PauseRequest) (*api.PauseReply, error) {
	return timed(ctx, m.Metrics, "Pause", in, m.Agent.Pause)
}

func (m measured) Publish(
	ctx context.Context, req *api.PublishRequest,
) (*api.PublishReply, error) {
	return timed(ctx, m.Metrics, "Publish", req, m.Agent.Publish)
}

func (m measured) Resume(ctx context.Context, in *api.ResumeRequest) (*api.ResumeReply, error) {
	return timed(ctx, m.Metrics, "Resume", in, m.Agent.Resume)
}

func (m measured) Stop(ctx context.Context, in *api.StopRequest) (*api.StopReply, error) {
	return timed(ctx, m.Metrics, "Stop", in, m.Agent.Stop)
}

func (m measured) Status(ctx context.Context, in *api.StatusRequest) (*api.StatusReply, error) {
	return timed(ctx, m.Metrics, "Status", in, m.Agent.Status)
}

func (m measured) Drain(ctx context.Context, in *api.DrainRequest) (*api.DrainReply, error) {
	return timed(ctx, m.Metrics, "Drain", in, m.Agent.Drain)
}

func (m measured) Report(ctx context.Context, in *api.ReportRequest) (*api.ReportReply, error) {
	return timed(ctx, m.Metrics, "Report", in, m.Agent.Report)
}
