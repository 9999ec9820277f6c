package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// framed serves node and returns the socket and the lines of the log.
func framed(t *testing.T, node NodeServer) (socket string, logged chan string) {
	t.Helper()
	logged = make(chan string, 100)
	log := slog.New(slog.NewTextHandler(lines(logged), nil))
	return serve(t, "unix", filepath.Join(t.TempDir(), "socket"), NewServer(node, log)), logged
}

type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// greeted is a connection that a node has greeted.
func greeted(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := newFrames(conn, nil).greet(); err != nil {
		t.Fatal(err)
	}
	return conn
}

func frame(t testing.TB, m proto.Message) []byte {
	t.Helper()
	content, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(content))), content...)
}

func asked(id string) *RunsRequest {
	return &RunsRequest{Number: 1, Run: &RunRequest{Id: id, Body: []byte("{}")}}
}

func TestWhatIsNoFrameEndsItsConnectionAlone(t *testing.T) {
	node := newRunner()
	socket, logged := framed(t, node)
	client := dialed(t, socket)
	other := make(chan error, 1)
	go func() {
		_, err := client.Run(t.Context(), &RunRequest{Id: "other"})
		other <- err
	}()
	<-node.begun
	whole := frame(t, asked("sandbox"))
	large := binary.BigEndian.AppendUint32(nil, maxMessage)
	for name, bad := range map[string][]byte{
		"garbage":        {0, 0, 0, 2, 0xff, 0xff},
		"too large":      {0xff, 0xff, 0xff, 0xff},
		"torn length":    whole[:2],
		"torn":           whole[:len(whole)-1],
		"torn and large": append(large, make([]byte, 2*readAhead)...),
	} {
		conn := greeted(t, socket).(*net.UnixConn)
		if _, err := conn.Write(bad); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(conn); len(rest) > 0 { // until the node closes it
			t.Errorf("%s: answered with %q, %v", name, rest, err)
		}
		<-logged
	}
	if len(logged) > 0 {
		t.Errorf("more than a line for each: %s", <-logged)
	}
	close(node.let)
	if err := <-other; err != nil {
		t.Errorf("the run of another invoker: %v", err)
	}
}

func TestWhoDoesNotGreetIsNotServed(t *testing.T) {
	socket, _ := framed(t, server{})
	get := "GET / HTTP/1.1\r\nHost: node\r\n\r\n"
	for _, begin := range []string{"", "f", "fastiov runs, version 0\n", get} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, begin)
		_ = conn.(*net.UnixConn).CloseWrite()
		if answer, _ := io.ReadAll(conn); bytes.Contains(answer, []byte(greeting)) {
			t.Errorf("%q is greeted", begin)
		}
		conn.Close()
	}
	if err := ask(t, socket, nil); err != nil {
		t.Errorf("a client after them: %v", err)
	}
}

// A connection that has not begun, and one with a run, do not keep a server from its end.
func TestAServerIsStoppedWhateverItsConnectionsDo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	node := newRunner()
	server := quiet(node)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	silent, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := silent.Write([]byte(greeting[:1])); err != nil {
		t.Fatal(err)
	}
	conn := greeted(t, socket)
	if _, err := conn.Write(frame(t, asked("endless"))); err != nil {
		t.Fatal(err)
	}
	<-node.begun
	server.Stop()
	<-served
	<-node.gone
	for _, conn := range []net.Conn{silent, conn} {
		if n, _ := conn.Read(make([]byte, 1)); n > 0 {
			t.Error("a connection is served on")
		}
	}
}

func TestARunEndsWithItsConnection(t *testing.T) {
	node := newRunner()
	socket, _ := framed(t, node)
	conn := greeted(t, socket)
	if _, err := conn.Write(frame(t, asked("endless"))); err != nil {
		t.Fatal(err)
	}
	<-node.begun
	conn.Close()
	<-node.gone
}

func TestAThousandRunsAtOnce(t *testing.T) {
	const runs = 1000
	node := newRunner()
	socket, _ := framed(t, node)
	client := dialed(t, socket)
	var running sync.WaitGroup
	for n := range runs {
		running.Go(func() {
			body := bytes.Repeat(fmt.Appendf(nil, "body %d ", n), 1+n%500)
			reply, err := client.Run(t.Context(), &RunRequest{Id: fmt.Sprint(n), Body: body})
			if err != nil || !bytes.Equal(reply.Body, body) {
				t.Errorf("run %d: %v", n, err)
			}
		})
	}
	for range runs {
		<-node.begun
	}
	close(node.let)
	running.Wait()
}

// Small runs are answered while large ones follow each other without a pause.
func TestLargeRunsLeaveRoomForSmallOnes(t *testing.T) {
	socket, _ := framed(t, echo{})
	client := dialed(t, socket)
	var large, small sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		large.Go(func() {
			body := make([]byte, 1<<20)
			for {
				reply, err := client.Run(t.Context(), &RunRequest{Body: body})
				if err != nil || len(reply.Body) != len(body) {
					t.Errorf("a large run: %v", err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 3 {
		small.Go(func() {
			for range 10 {
				if _, err := client.Run(t.Context(), &RunRequest{Body: []byte("x")}); err != nil {
					t.Errorf("a small run: %v", err)
				}
			}
		})
	}
	small.Wait()
	close(stop)
	large.Wait()
}

// answering answers each run with the same body and logs, and counts them.
type answering struct {
	UnimplementedNodeServer
	body []byte
	logs string
	runs atomic.Int64
}

func (a *answering) Run(context.Context, *RunRequest) (*RunReply, error) {
	a.runs.Add(1)
	return &RunReply{Body: a.body, Logs: []*LogLine{{Text: a.logs}}}, nil
}

// An invoker that takes no answers is not read from for ever. Its own write ends by a deadline. The
// deadline measures nothing: if the node read all, the write would be done before it.
func TestWhoTakesNoAnswersIsNotHeard(t *testing.T) {
	node := &answering{body: make([]byte, 1<<20)}
	socket, _ := framed(t, node)
	conn := greeted(t, socket)
	run := &RunRequest{Id: "sandbox", Body: make([]byte, 1000)}
	if err := conn.SetWriteDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(100_000) {
		if _, err := conn.Write(frame(t, &RunsRequest{Number: n, Run: run})); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			if runs := node.runs.Load(); runs > mostHeld/runCost || m.HeapAlloc > 64<<20 {
				t.Errorf("%d runs and %d MiB for who takes no answer", runs, m.HeapAlloc>>20)
			}
			return
		}
	}
	t.Error("the node has read all, though nobody takes its answers")
}

// The logs of a run are part of the answer that nobody takes.
func TestLogsThatNobodyTakesAreBounded(t *testing.T) {
	node := &answering{logs: strings.Repeat("x", 10<<20)}
	by := &deaf{gone: make(chan struct{})}
	table := &table{node: node, asker: by, budget: newBudget()}
	table.cancels = map[uint64]context.CancelFunc{}
	var running sync.WaitGroup
	defer running.Wait()
	defer close(by.gone)
	for n := range uint64(2 * mostHeld / (10 << 20)) {
		if table.budget.free.Load() <= 0 {
			return
		}
		task, err := table.begin(t.Context(), &RunsRequest{Number: n, Run: &RunRequest{}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		by.asked.Add(1)
		running.Go(func() { table.run(task) })
		by.asked.Wait()
	}
	t.Errorf("%d runs of 10 MiB of logs were begun for who takes no answer", node.runs.Load())
}

// deaf takes no answer before it has gone.
type deaf struct {
	asked sync.WaitGroup
	gone  chan struct{}
}

func (d *deaf) Recv() (*RunsRequest, int, error) { return nil, 0, io.EOF }

func (d *deaf) Send(*RunsReply, int) {
	d.asked.Done()
	<-d.gone
}

func TestANumberIsOneRuns(t *testing.T) {
	table := &table{budget: newBudget(), cancels: map[uint64]context.CancelFunc{}}
	for _, want := range []codes.Code{codes.OK, codes.InvalidArgument} {
		task, err := table.begin(t.Context(), &RunsRequest{Number: 1, Run: &RunRequest{}}, 0)
		if status.Code(err) != want {
			t.Errorf("a run of number 1: %v, want %v", err, want)
		}
		if err == nil {
			defer task.cancel()
		}
	}
}

// An invoker of the former version asks for the stream by gRPC.
func TestAnInvokerOfAnEarlierVersionHasItsStream(t *testing.T) {
	socket, _ := framed(t, echo{})
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient("unix:"+socket, plain)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := NewNodeClient(conn).Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&RunsRequest{Number: 7,
		Run: &RunRequest{Body: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if reply, err := stream.Recv(); err != nil || reply.Number != 7 ||
		string(reply.Run.Body) != "x" {
		t.Errorf("%v, %v", reply, err)
	}
}

func TestANodeThatIsNotThereIsUnavailable(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	client := dialed(t, socket)
	if _, err := client.Run(t.Context(), &RunRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("no socket: %v", err)
	}
	serve(t, "unix", socket, quiet(echo{}))
	if _, err := client.Run(t.Context(), &RunRequest{}); err != nil {
		t.Errorf("the node has come: %v", err)
	}
}

func TestHangingUpEndsRuns(t *testing.T) {
	node := newRunner()
	socket, _ := framed(t, node)
	client, hangUp, err := Dial(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-node.begun; hangUp() }()
	_, err = client.Run(t.Context(), &RunRequest{Id: "endless"})
	if status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	<-node.gone
}

// A node that is there answers when asked; one that is stopped does not, and is hung up on.
func TestANodeThatSaysNothingIsHungUpOn(t *testing.T) {
	watched := func(near net.Conn, ticks int) *frames {
		f := newFrames(near, nil)
		ctx, cancel := context.WithCancel(t.Context())
		tick, done := make(chan time.Time), make(chan struct{})
		go func() { defer close(done); f.watch(ctx, tick) }()
		for range ticks {
			tick <- time.Time{}
		}
		t.Cleanup(func() { cancel(); <-done; near.Close() })
		return f
	}
	silent, far := net.Pipe()
	defer far.Close()
	f := watched(silent, 2)
	if _, err := f.in.ReadByte(); err == nil {
		t.Error("something came")
	}
	socket, _ := framed(t, echo{})
	f = watched(greeted(t, socket), 1)
	if content, _, err := f.next(); err != nil || len(content) > 0 {
		t.Errorf("a node that was asked whether it is there: %q, %v", content, err)
	}
}

// FuzzFrames reads any bytes as frames. A message that was read can be sent, and is read again as
// it was.
func FuzzFrames(f *testing.F) {
	request := &RunRequest{Id: "sandbox", Body: []byte("{}"), TimeoutMs: 1}
	run := frame(f, &RunsRequest{Number: 1, Run: request})
	gone := frame(f, &RunsRequest{Number: 1})
	f.Add([]byte{})
	f.Add(append(append(run, gone...), 0, 0, 0, 0))
	f.Add(run[:len(run)-1])
	f.Add(run[:3])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0})
	f.Add([]byte{0, 0, 0, 2, 0xff, 0xff})
	const small = 64 // bytes of a reader, so that a large frame is one that is quickly fuzzed
	large := make([]byte, 2*small)
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(large))), large...))
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		defer far.Close()
		from := newFrames(near, newBudget())
		from.in = bufio.NewReaderSize(bytes.NewReader(data), small)
		for {
			in := &RunsRequest{}
			empty, held, err := from.receive(in)
			from.budget.give(held)
			if err != nil {
				return
			}
			again := newFrames(near, nil)
			again.in = bufio.NewReaderSize(bytes.NewReader(frame(t, in)), small)
			out := &RunsRequest{}
			if _, _, err := again.receive(out); err != nil || !proto.Equal(in, out) {
				t.Errorf("%v is read as %v, %v (empty: %v)", in, out, err, empty)
			}
		}
	})
}
