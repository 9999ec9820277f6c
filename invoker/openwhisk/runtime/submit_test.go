package runtime

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// A node answers each /run with the next of its answers, then with success.
type node struct {
	api.UnimplementedNodeServer
	init    int32
	answers []error
	runs    int
}

func (n *node) Start(_ context.Context, in *api.StartRequest) (*api.StartReply, error) {
	return &api.StartReply{Id: in.Id, InitStatus: n.init, InitReply: []byte(`{"error":"no"}`)}, nil
}

func (n *node) Run(context.Context, *api.RunRequest) (*api.RunReply, error) {
	n.runs++
	if len(n.answers) > 0 {
		err := n.answers[0]
		n.answers = n.answers[1:]
		return nil, err
	}
	return &api.RunReply{Status: 200, Body: []byte(`{}`)}, nil
}

func (*node) Stop(context.Context, *api.StopRequest) (*api.StopReply, error) {
	return &api.StopReply{}, nil
}

func (*node) Status(context.Context, *api.StatusRequest) (*api.StatusReply, error) {
	return &api.StatusReply{}, nil
}

// A job counts how often its request is made.
type job struct {
	made     int
	fails    error
	outdated bool
	result   Result
	err      error
	over     chan struct{}
}

func (j *job) Run() (*api.RunRequest, error) {
	j.made++
	return &api.RunRequest{}, j.fails
}
func (j *job) Outdated() bool { return j.outdated }
func (j *job) Ended(result Result, err error) {
	j.result, j.err = result, err
	close(j.over)
}

func done(p *pool.Pool, j *job) *job {
	j.over = make(chan struct{})
	Submit(p, pool.Demand{
		Group: "a", MemoryMiB: 128,
		Start: func() (*api.StartRequest, error) { return &api.StartRequest{}, nil },
	}, j)
	<-j.over
	return j
}

func TestSubmit(t *testing.T) {
	with := func(n *node) *pool.Pool {
		p := pool.New(pool.Config{
			KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute,
		}, api.Local(n))
		t.Cleanup(p.Close)
		return p
	}
	refusing := &node{init: 502}
	if j := done(with(refusing), &job{}); j.err != nil || j.result.Run != nil || j.made != 0 ||
		j.result.Answer.Status != activation.DeveloperError {
		t.Errorf("a refused /init: %+v", j)
	}

	n := &node{init: 200}
	p := with(n)
	first := done(p, &job{})
	if first.err != nil || !first.result.Cold || first.result.Answer.Status != activation.Success {
		t.Errorf("%+v", first)
	}
	own := errors.New("it could not be noted")
	if j := done(p, &job{fails: own}); j.err != own || n.runs != 1 {
		t.Errorf("sent %d times: %v", n.runs, j.err)
	}
	warm := done(p, &job{})
	if warm.result.How != pool.Warm || warm.result.Sandbox != first.result.Sandbox {
		t.Errorf("what was not sent cost a sandbox: %+v", warm)
	}
	n.answers = []error{status.Error(codes.NotFound, "it ended")}
	if j := done(p, &job{}); j.err != nil || j.made != 2 || !j.result.Cold {
		t.Errorf("where nothing was reached: %+v", j)
	}
	n.answers = []error{status.Error(codes.Internal, "it broke")}
	var run *RunError
	if j := done(p, &job{}); !errors.As(j.err, &run) || j.made != 1 {
		t.Errorf("where the runtime may have seen it: %+v", j)
	}
	done(p, &job{outdated: true})
	if j := done(p, &job{}); !j.result.Cold {
		t.Error("the sandbox of an outdated action serves another job")
	}
}
