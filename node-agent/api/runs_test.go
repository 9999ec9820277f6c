package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// runner answers a run with its body, once it is let go; a run called "endless" ends with its
// caller.
type runner struct {
	UnimplementedNodeServer
	begun, gone chan string
	let         chan struct{}
}

func newRunner() *runner {
	return &runner{begun: make(chan string, 100), gone: make(chan string, 1),
		let: make(chan struct{})}
}

func (r *runner) Run(ctx context.Context, in *RunRequest) (*RunReply, error) {
	r.begun <- in.Id
	switch in.Id {
	case "endless":
		<-ctx.Done()
		r.gone <- in.Id
		return nil, ctx.Err()
	case "unreached":
		return nil, status.Error(codes.Aborted, "the sandbox could not be reached")
	}
	select {
	case <-r.let:
		return &RunReply{Body: in.Body}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// quiet is a server that keeps to itself what it logs.
func quiet(node NodeServer) *Server { return NewServer(node, silent) }

var silent = slog.New(slog.DiscardHandler)

// byEach runs a test by frames, and by the gRPC stream that a former version has.
func byEach(t *testing.T, test func(t *testing.T, serverOf func(NodeServer) served)) {
	t.Run("frames", func(t *testing.T) {
		test(t, func(node NodeServer) served { return quiet(node) })
	})
	t.Run("stream", func(t *testing.T) {
		test(t, func(node NodeServer) served { return newServer(node, newBudget()) })
	})
}

// streams counts the calls that reach a server, by method.
type streams struct{ runs, run atomic.Int64 }

func (s *streams) options() []grpc.ServerOption {
	count := func(method string) {
		switch method {
		case Node_Runs_FullMethodName:
			s.runs.Add(1)
		case Node_Run_FullMethodName:
			s.run.Add(1)
		}
	}
	return []grpc.ServerOption{
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			count(info.FullMethod)
			return handler(srv, ss)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			count(info.FullMethod)
			return handler(ctx, in)
		}),
	}
}

func dialed(t *testing.T, socket string) NodeClient {
	t.Helper()
	client, hangUp, err := Dial(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hangUp)
	return client
}

func TestRunsShareAStream(t *testing.T) {
	node, seen := newRunner(), &streams{}
	server := newServer(node, newBudget(), seen.options()...)
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), server))
	var running sync.WaitGroup
	for n := range 50 {
		running.Go(func() {
			body := fmt.Sprint("body ", n)
			reply, err := client.Run(t.Context(), &RunRequest{Id: body, Body: []byte(body)})
			if err != nil || string(reply.Body) != body {
				t.Errorf("%s: %v, %v", body, reply, err)
			}
		})
	}
	for range 50 { // all are under way at once
		<-node.begun
	}
	close(node.let)
	running.Wait()
	if seen.runs.Load() != 1 || seen.run.Load() != 0 {
		t.Errorf("%d streams and %d calls of their own for 50 runs", seen.runs.Load(),
			seen.run.Load())
	}
	_, err := client.Run(t.Context(), &RunRequest{Id: "unreached"})
	if status.Code(err) != codes.Aborted ||
		status.Convert(err).Message() != "the sandbox could not be reached" {
		t.Errorf("a run that failed: %v", err)
	}
}

func TestARunEndsWithItsCaller(t *testing.T) { byEach(t, testARunEndsWithItsCaller) }

func testARunEndsWithItsCaller(t *testing.T, serverOf func(NodeServer) served) {
	node := newRunner()
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), serverOf(node)))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-node.begun; cancel() }()
	if _, err := client.Run(ctx, &RunRequest{Id: "endless"}); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	<-node.gone
	close(node.let)
	if reply, err := client.Run(t.Context(), &RunRequest{Body: []byte("x")}); err != nil ||
		string(reply.Body) != "x" {
		t.Errorf("the next run on the stream: %v, %v", reply, err)
	}
}

func TestAStreamThatBreaksIsOpenedAgain(t *testing.T) {
	byEach(t, testAStreamThatBreaksIsOpenedAgain)
}

func testAStreamThatBreaksIsOpenedAgain(t *testing.T, serverOf func(NodeServer) served) {
	socket, first := filepath.Join(t.TempDir(), "socket"), newRunner()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := serverOf(first)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	client := dialed(t, socket)
	go func() { <-first.begun; server.Stop() }()
	if _, err := client.Run(t.Context(),
		&RunRequest{Id: "held"}); status.Code(err) != codes.Unavailable {
		t.Errorf("a run whose node has gone: %v", err)
	}
	<-served
	second := newRunner()
	close(second.let)
	serve(t, "unix", socket, serverOf(second))
	for { // gRPC tries again after a while
		reply, err := client.Run(t.Context(), &RunRequest{Body: []byte("x")})
		if err == nil && string(reply.Body) == "x" {
			return
		}
		if status.Code(err) != codes.Unavailable {
			t.Fatal(reply, err)
		}
	}
}

func TestANodeOfAnEarlierVersionIsCalledRunByRun(t *testing.T) {
	node, seen := newRunner(), &streams{}
	close(node.let)
	server := grpc.NewServer(seen.options()...)
	RegisterNodeServer(server, node) // which has no Runs
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), server))
	for range 3 {
		if reply, err := client.Run(t.Context(), &RunRequest{Body: []byte("x")}); err != nil ||
			string(reply.Body) != "x" {
			t.Errorf("%v, %v", reply, err)
		}
	}
	if seen.run.Load() != 3 || seen.runs.Load() != 1 {
		t.Errorf("%d runs, and %d tries of a stream", seen.run.Load(), seen.runs.Load())
	}
}

// An error of a run is its answer, whatever its code: the run may have had its effect.
func TestARunThatFailedIsSentOnce(t *testing.T) { byEach(t, testARunThatFailedIsSentOnce) }

func testARunThatFailedIsSentOnce(t *testing.T, serverOf func(NodeServer) served) {
	var ran atomic.Int64
	node := answers{newRunner(), map[string]func() (*RunReply, error){
		"unknown": func() (*RunReply, error) {
			ran.Add(1)
			return nil, status.Error(codes.Unimplemented, "by the sandbox")
		},
	}}
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), serverOf(node)))
	_, err := client.Run(t.Context(), &RunRequest{Id: "unknown"})
	if status.Code(err) != codes.Unimplemented || ran.Load() != 1 {
		t.Errorf("it ran %d times: %v", ran.Load(), err)
	}
}

// answers is a node that answers the runs whose ids are in by immediately. Other runs go on until
// the test lets them end.
type answers struct {
	*runner
	by map[string]func() (*RunReply, error)
}

func (a answers) Run(ctx context.Context, in *RunRequest) (*RunReply, error) {
	if by := a.by[in.Id]; by != nil {
		return by()
	}
	return a.runner.Run(ctx, in)
}

// A reply that cannot be sent fails its own run, and does not end those that share its stream.
func TestARunThatCannotBeSentEndsNoOther(t *testing.T) {
	byEach(t, testARunThatCannotBeSentEndsNoOther)
}

func testARunThatCannotBeSentEndsNoOther(t *testing.T, serverOf func(NodeServer) served) {
	const bad = "\xff\xfe"
	node := answers{newRunner(), map[string]func() (*RunReply, error){
		"message": func() (*RunReply, error) { return nil, status.Error(codes.Aborted, bad) },
		"logs": func() (*RunReply, error) {
			return &RunReply{Logs: []*LogLine{{Stream: bad, Text: "a" + bad}}}, nil
		},
		"large": func() (*RunReply, error) {
			return &RunReply{Body: make([]byte, maxMessage)}, nil
		},
	}}
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), serverOf(node)))
	other := make(chan error, 1)
	go func() {
		_, err := client.Run(t.Context(), &RunRequest{Id: "other"})
		other <- err
	}()
	<-node.begun
	for _, c := range []struct {
		in   *RunRequest
		want codes.Code
	}{
		{&RunRequest{Id: "message"}, codes.Aborted},
		{&RunRequest{Id: "logs"}, codes.OK},
		{&RunRequest{Id: "large"}, codes.Internal},
		{&RunRequest{Id: bad}, codes.InvalidArgument},
		{&RunRequest{Id: "sent", Body: make([]byte, maxMessage)}, codes.InvalidArgument},
	} {
		reply, err := client.Run(t.Context(), c.in)
		if status.Code(err) != c.want {
			t.Errorf("%q: %v, want %v", c.in.Id, err, c.want)
		}
		if c.in.Id == "logs" && err == nil && reply.Logs[0].Text != "a\uFFFD" {
			t.Errorf("the line is %q", reply.Logs[0].Text)
		}
	}
	close(node.let)
	if err := <-other; err != nil {
		t.Errorf("the run that went on meanwhile: %v", err)
	}
}

// BenchmarkRun is a run over a Unix socket, 16 at a time.
func BenchmarkRun(b *testing.B) {
	l, err := net.Listen("unix", filepath.Join(b.TempDir(), "socket"))
	if err != nil {
		b.Fatal(err)
	}
	server := quiet(echo{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	client, hangUp, err := Dial(l.Addr().String(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer hangUp()
	in := &RunRequest{Id: "sandbox", Body: make([]byte, 200), TimeoutMs: 60_000}
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(each *testing.PB) {
		for each.Next() {
			if _, err := client.Run(b.Context(), in); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

type echo struct{ UnimplementedNodeServer }

func (echo) Run(_ context.Context, in *RunRequest) (*RunReply, error) {
	return &RunReply{Body: in.Body}, nil
}

// A node that is of a later version when it is back has its runs over a stream from then on.
func TestANodeThatWasUpgradedHasAStream(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	node, seen := newRunner(), &streams{}
	close(node.let)
	up := func(s served) (down func()) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		return func() { s.Stop(); <-done }
	}
	former := grpc.NewServer()
	RegisterNodeServer(former, node) // which has no Runs
	down := up(former)
	client := dialed(t, socket)
	if _, err := client.Run(t.Context(), &RunRequest{}); err != nil {
		t.Fatal(err)
	}
	down()
	if _, err := client.Run(t.Context(), &RunRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("while it is away: %v", err)
	}
	down = up(newServer(node, newBudget(), seen.options()...))
	defer down()
	for { // until the client has seen that it is back
		if _, err := client.Run(t.Context(), &RunRequest{}); err == nil {
			break
		} else if status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
	if _, err := client.Run(t.Context(), &RunRequest{}); err != nil || seen.runs.Load() == 0 {
		t.Errorf("%v; %d runs by a call of their own", err, seen.run.Load())
	}
}
