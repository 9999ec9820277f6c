package api

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A call of its own per run costs more than all that the invoker and the agent do for a warm one:
// headers, a stream, its goroutine and its trailers. So runs share a stream, Runs.

// streaming answers Runs by a node's Run.
type streaming struct {
	NodeServer
	budget *budget
}

// Runs implements NodeServer.
func (s streaming) Runs(stream grpc.BidiStreamingServer[RunsRequest, RunsReply]) error {
	by := &inTurn{BidiStreamingServer: stream, budget: s.budget}
	return serveRuns(stream.Context(), s.NodeServer, by, s.budget)
}

// inTurn is a stream that many may send on.
type inTurn struct {
	grpc.BidiStreamingServer[RunsRequest, RunsReply]
	budget  *budget
	sending sync.Mutex
}

// Send implements asker.
func (t *inTurn) Send(out *RunsReply, held int) {
	defer t.budget.give(held)
	t.sending.Lock()
	defer t.sending.Unlock()
	_ = t.BidiStreamingServer.Send(out)
}

// Recv implements asker.
func (t *inTurn) Recv() (*RunsRequest, int, error) {
	in, err := t.BidiStreamingServer.Recv()
	return in, 0, err
}

// An asker sends runs and takes answers, by gRPC or by frames. With a run comes what it holds of
// the budget already; when its answer has been sent, or cannot be, what both hold is given back.
type asker interface {
	Recv() (in *RunsRequest, held int, err error)
	Send(out *RunsReply, held int)
}

var errNoRoom = status.Errorf(codes.Unavailable,
	"the node has no room for the run: those under way, for all invokers, hold %d MiB",
	mostHeld>>20)

// mostIdle bounds the goroutines that wait for an asker's next run: their stacks have grown.
const mostIdle = 64

// A table is the runs of one asker that are under way.
type table struct {
	node   NodeServer
	asker  asker
	budget *budget
	next   chan task // to a goroutine that is idle
	idle   atomic.Int32

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

type task struct {
	ctx    context.Context
	cancel context.CancelFunc
	in     *RunsRequest
	held   int
}

// serveRuns runs what it is asked to until the asker, or ctx, ends.
func serveRuns(ctx context.Context, node NodeServer, by asker, budget *budget) error {
	t := &table{node: node, asker: by, budget: budget, next: make(chan task)}
	t.cancels = map[uint64]context.CancelFunc{}
	var running sync.WaitGroup
	defer running.Wait()
	defer close(t.next)
	ctx, end := context.WithCancel(ctx)
	defer end()
	for {
		in, held, err := by.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if in.Run == nil {
			t.cancel(in.Number)
			budget.give(held)
			continue
		}
		task, err := t.begin(ctx, in, held)
		if err != nil {
			by.Send(replyTo(in.Number, nil, err), 0)
			continue
		}
		select {
		case t.next <- task:
		default:
			running.Go(func() { t.work(task) })
		}
	}
}

// work runs this task, and then others while there are.
func (t *table) work(task task) {
	for more := true; more; {
		t.run(task)
		if t.idle.Add(1) > mostIdle {
			more = false
		} else {
			task, more = <-t.next
		}
		t.idle.Add(-1)
	}
}

// begin takes room, where the run has none yet.
func (t *table) begin(ctx context.Context, in *RunsRequest, held int) (task, error) {
	if held == 0 {
		if held = len(in.Run.Body) + runCost; !t.budget.take(held) {
			return task{}, errNoRoom
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancels[in.Number] != nil {
		t.budget.give(held)
		return task{}, status.Errorf(codes.InvalidArgument,
			"a run of number %d is under way", in.Number)
	}
	// There is no timer: the node knows the limit, and so does the asker.
	ctx, cancel := context.WithCancel(ctx)
	t.cancels[in.Number] = cancel
	return task{ctx, cancel, in, held}, nil
}

func (t *table) run(task task) {
	reply, err := t.node.Run(task.ctx, task.in.Run)
	task.cancel()
	out := replyTo(task.in.Number, reply, err)
	answer := proto.Size(out)
	t.budget.owe(answer)
	t.asker.Send(out, task.held+answer)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cancels, task.in.Number)
}

func (t *table) cancel(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cancel := t.cancels[number]; cancel != nil {
		cancel()
	}
}

// replyTo puts the end of a run into a form that can be sent: an error in sending ends the stream,
// and with it the runs of others.
func replyTo(number uint64, reply *RunReply, err error) *RunsReply {
	out := &RunsReply{Number: number, Run: reply}
	for _, line := range reply.GetLogs() {
		line.Stream, line.Text = valid(line.Stream), valid(line.Text)
	}
	if err == nil && proto.Size(out) > maxMessage {
		err = status.Errorf(codes.Internal, "the answer of the run is larger than %d MiB",
			maxMessage>>20)
	}
	if err != nil {
		failure := status.Convert(err)
		out = &RunsReply{Number: number, Code: int32(failure.Code()),
			Message: valid(failure.Message())}
	}
	return out
}

// valid is text as a message takes it.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// sendable refuses a run that would end the stream.
func sendable(in *RunRequest) error {
	switch {
	case !utf8.ValidString(in.Id):
		return status.Errorf(codes.InvalidArgument, "the id %q is no UTF-8", in.Id)
	case proto.Size(in) > maxMessage-64: // with its number
		return status.Errorf(codes.InvalidArgument, "the run is larger than %d MiB", maxMessage>>20)
	}
	return nil
}

// A client sends its runs over one stream, which is opened again once it has broken.
// Over a Unix socket, the stream is frames.
type client struct {
	NodeClient
	ctx    context.Context // ends when it hangs up
	socket string          // the node's, where it has one
	unary  atomic.Bool     // the node has no stream of runs

	mu   sync.Mutex
	runs *runs
}

// errNoRuns says that a node is of a version without the stream: it has run nothing that was sent.
var errNoRuns = errors.New("the node has no stream of runs")

// Run implements NodeClient.
func (c *client) Run(ctx context.Context, in *RunRequest,
	options ...grpc.CallOption) (*RunReply, error) {
	if !c.unary.Load() {
		reply, err := c.stream().run(ctx, in)
		if !errors.Is(err, errNoRuns) {
			return reply, err
		}
		c.unary.Store(true)
	}
	reply, err := c.NodeClient.Run(ctx, in, options...)
	if status.Code(err) == codes.Unavailable { // it may be back as a later version
		c.unary.Store(false)
	}
	return reply, err
}

func (c *client) stream() *runs {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil || c.runs.broken() {
		c.runs = &runs{opened: make(chan struct{}), answers: map[uint64]chan<- answer{}}
		go c.runs.serve(c.ctx, c.open)
	}
	return c.runs
}

// A carrier takes runs to a node, by gRPC or by frames.
type carrier interface {
	Send(*RunsRequest) error
	Recv() (*RunsReply, error)
}

func (c *client) open(ctx context.Context) (carrier, error) {
	if c.socket != "" {
		node, err := dialFrames(ctx, c.socket)
		if !errors.Is(err, errNoFrames) {
			return node, err
		}
	}
	return c.Runs(ctx)
}

// runs holds the runs under way on one stream.
type runs struct {
	opened  chan struct{} // closed when there is a stream, or an error
	sending sync.Mutex
	stream  carrier

	mu      sync.Mutex
	last    uint64
	answers map[uint64]chan<- answer
	err     error // it has broken
}

type answer struct {
	reply *RunsReply
	err   error
}

// serve opens the stream and hands out what comes, until it breaks.
func (r *runs) serve(ctx context.Context, open func(context.Context) (carrier, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		r.breakUp(err)
		close(r.opened)
		return
	}
	r.stream = stream
	close(r.opened)
	for answered := false; ; answered = true {
		reply, err := stream.Recv()
		if status.Code(err) == codes.Unimplemented && !answered {
			err = errNoRuns
		}
		if err != nil {
			r.breakUp(err)
			return
		}
		if waits := r.take(reply.Number); waits != nil {
			waits <- answer{reply: reply}
		}
	}
}

// breakUp tells all waiting callers that nothing more comes.
func (r *runs) breakUp(err error) {
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the node has ended the stream of runs")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	for _, waits := range r.answers {
		waits <- answer{err: err}
	}
	r.answers = nil
}

func (r *runs) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil
}

// expect makes a number for a run; its answer, or the stream's error, comes once.
func (r *runs) expect(waits chan<- answer) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	r.last++
	r.answers[r.last] = waits
	return r.last, nil
}

func (r *runs) take(number uint64) chan<- answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := r.answers[number]
	delete(r.answers, number)
	return waits
}

func (r *runs) send(in *RunsRequest) {
	r.sending.Lock()
	defer r.sending.Unlock()
	_ = r.stream.Send(in) // a stream that takes nothing has broken, which serve tells
}

func (r *runs) run(ctx context.Context, in *RunRequest) (*RunReply, error) {
	if err := sendable(in); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, in)
	defer cancel()
	select {
	case <-r.opened:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	waits := make(chan answer, 1)
	number, err := r.expect(waits)
	if err != nil {
		return nil, err
	}
	r.send(&RunsRequest{Number: number, Run: in})
	select {
	case a := <-waits:
		return a.run()
	case <-ctx.Done():
		if r.take(number) == nil { // it comes just now
			a := <-waits
			return a.run()
		}
		r.send(&RunsRequest{Number: number})
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (a answer) run() (*RunReply, error) {
	switch {
	case a.err != nil:
		return nil, a.err
	case a.reply.Code != 0:
		return nil, status.Error(codes.Code(a.reply.Code), a.reply.Message)
	case a.reply.Run == nil:
		return nil, status.Error(codes.Internal, "the node has answered a run with nothing")
	}
	return a.reply.Run, nil
}
