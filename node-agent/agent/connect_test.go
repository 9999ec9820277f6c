package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// eachWay runs a test with a client in the same process and one over a socket.
func eachWay(t *testing.T, test func(t *testing.T, a *Agent, d *driver, node api.NodeClient)) {
	t.Run("local", func(t *testing.T) {
		a, d, _ := newAgent(t)
		test(t, a, d, api.Local(a))
	})
	t.Run("socket", func(t *testing.T) {
		a, d, _ := newAgent(t)
		socket := filepath.Join(t.TempDir(), "node.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := api.NewServer(a, slog.New(slog.DiscardHandler))
		go server.Serve(l)
		defer server.Stop()
		node, hangUp, err := api.Dial(socket, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer hangUp()
		test(t, a, d, node)
	})
}

// program is a web server behind a sandbox's port 9000, which is ready after some probes.
func program(t *testing.T, d *driver, handler http.HandlerFunc) {
	probes := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			if probes++; probes < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	d.dial = func(port int) (net.Conn, error) {
		if port != 9000 {
			return nil, fmt.Errorf("nobody listens on port %d", port)
		}
		return net.Dial("tcp", server.Listener.Addr().String())
	}
}

func startHTTP(t *testing.T, node api.NodeClient) {
	t.Helper()
	reply, err := node.Start(t.Context(), &api.StartRequest{
		Id: "x", MemoryMib: 128, Protocol: "http", Port: 9000, Probe: "/ready",
	})
	if err != nil || reply.InitStatus != 200 {
		t.Fatal(reply, err)
	}
}

func stop(t *testing.T, a *Agent) {
	t.Helper()
	if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
		t.Fatal(err)
	}
}

// A program that serves plain HTTP is reached by Connect, and streams both ways at once.
func TestAPlainHTTPProgram(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		program(t, d, func(w http.ResponseWriter, r *http.Request) {
			both := http.NewResponseController(w)
			_ = both.EnableFullDuplex()
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				fmt.Fprintf(w, "heard %s\n", lines.Text())
				_ = both.Flush()
			}
		})
		startHTTP(t, node)
		defer stop(t, a)
		dial := func(context.Context, string, string) (net.Conn, error) {
			return api.Connect(t.Context(), node, "x", 9000)
		}
		transport := &http.Transport{DialContext: dial}
		defer transport.CloseIdleConnections()
		for range 3 {
			said, say := io.Pipe()
			request, err := http.NewRequestWithContext(t.Context(), "POST", "http://x/talk", said)
			if err != nil {
				t.Fatal(err)
			}
			go fmt.Fprintln(say, "0")
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			heard := bufio.NewScanner(response.Body)
			for i := range 5 {
				if !heard.Scan() || heard.Text() != fmt.Sprint("heard ", i) {
					t.Fatalf("%q, %v", heard.Text(), heard.Err())
				}
				fmt.Fprintln(say, i+1)
			}
			say.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Error(err)
			}
			response.Body.Close()
		}
		_, err := node.Run(t.Context(), &api.RunRequest{Id: "x"})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "Connect") {
			t.Errorf("a run: %v", err)
		}
	})
}

// echoServer answers what it hears, says its last word when it has heard all, and hangs up.
func echoServer(t *testing.T, d *driver) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.Copy(struct{ io.Writer }{conn}, conn); err == nil {
					io.WriteString(conn, "bye")
				}
			}()
		}
	}()
	d.dial = func(int) (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
}

func TestConnectClosesOneWay(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		echoServer(t, d)
		if _, err := node.Start(t.Context(),
			&api.StartRequest{Id: "x", MemoryMib: 128}); err != nil {
			t.Fatal(err)
		}
		defer stop(t, a)
		conn, err := api.Connect(t.Context(), node, "x", 80)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		text := strings.Repeat("0123456789abcdef", 1<<16)
		go func() {
			io.WriteString(conn, text)
			conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		heard, err := io.ReadAll(conn)
		if err != nil || string(heard) != text+"bye" {
			t.Errorf("%d bytes of %d, %v", len(heard), len(text)+3, err)
		}
		if _, err := conn.Write([]byte("more")); err == nil {
			t.Error("it takes more after its end")
		}
	})
}

// What a caller has sent arrives, also where the sandbox was the first to say all, and the caller
// closes the connection when it has.
func TestConnectDeliversBeforeItCloses(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		const size = 8 << 20
		took := make(chan int64, 1)
		d.dial = func(int) (net.Conn, error) {
			ours, theirs := halves(t)
			go func() {
				theirs.CloseWrite()
				n, _ := io.Copy(io.Discard, theirs)
				theirs.Close()
				took <- n
			}()
			return ours, nil
		}
		if _, err := start(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		defer stop(t, a)
		conn, err := api.Connect(t.Context(), node, "x", 80)
		if err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(conn); err != nil || len(said) > 0 {
			t.Fatal(said, err)
		}
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if n := <-took; n != size {
			t.Errorf("%d bytes of %d arrived", n, size)
		}
	})
}

// halves returns the two ends of a TCP connection.
func halves(t *testing.T) (ours, theirs *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// A caller that goes on after the sandbox has said all is told when the sandbox ends.
func TestConnectEndsWithASandboxThatHasSaidAll(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		d.dial = func(int) (net.Conn, error) {
			ours, theirs := halves(t)
			theirs.Close()
			return ours, nil
		}
		if _, err := start(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		stream, err := node.Connect(ctx)
		if err == nil {
			err = stream.Send(&api.ConnectRequest{Id: "x", Port: 80})
		}
		if err != nil {
			t.Fatal(err)
		}
		if last, err := stream.Recv(); err != nil || !last.End {
			t.Fatal(last, err)
		}
		stop(t, a)
		if _, err := stream.Recv(); err == nil || status.Code(err) == codes.DeadlineExceeded {
			t.Errorf("the caller is told %v", err)
		}
	})
}

func TestConnectRefusesALargeMessage(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		echoServer(t, d)
		if _, err := start(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		defer stop(t, a)
		stream, err := node.Connect(t.Context())
		if err == nil {
			err = stream.Send(&api.ConnectRequest{Id: "x", Port: 80})
		}
		if err == nil {
			err = stream.Send(&api.ConnectRequest{Data: make([]byte, api.MostData+1)})
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "at most") {
			t.Errorf("the caller is told %v", err)
		}
	})
}

// writesOn is the stream of a reader of logs: while it takes a line, the runtime writes two more.
type writesOn struct {
	grpc.ServerStreamingServer[api.LogsReply]
	ctx  context.Context
	box  *box
	sent int
}

func (w *writesOn) Context() context.Context { return w.ctx }

func (*writesOn) SendHeader(metadata.MD) error { return nil }

func (w *writesOn) Send(*api.LogsReply) error {
	if w.sent++; w.sent > 100 {
		return errors.New("there is no end to it")
	}
	for range 2 {
		w.box.logs.Add(wire.LogLine{Stream: "stdout", Text: "more"})
	}
	return nil
}

// What a runtime has written lately is not what it goes on to write.
func TestLogsEndThoughTheirRuntimeWritesOn(t *testing.T) {
	a, d, _ := newAgent(t)
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	defer stop(t, a)
	reader := &writesOn{ctx: t.Context(), box: d.boxes["x"]}
	reader.box.logs.Add(wire.LogLine{Stream: "stdout", Text: "one"})
	before := len(reader.box.logs.Lines())
	err := a.Logs(&api.LogsRequest{Id: "x"}, reader)
	if err != nil || reader.sent != before {
		t.Errorf("%d lines of %d, %v", reader.sent, before, err)
	}
}

// A client that does not read is not sent to without end.
func TestConnectHoldsBack(t *testing.T) {
	a, d, _ := newAgent(t)
	wrote := make(chan int)
	d.dial = func(int) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			total := 0
			for chunk := make([]byte, 32<<10); ; {
				n, err := theirs.Write(chunk)
				if total += n; err != nil {
					wrote <- total
					return
				}
			}
		}()
		return ours, nil
	}
	node := api.Local(a)
	if _, err := node.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128}); err != nil {
		t.Fatal(err)
	}
	conn, err := api.Connect(t.Context(), node, "x", 80)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if total := <-wrote; total > 256<<10 {
		t.Errorf("%d bytes were sent for 64 KiB read", total)
	}
	stop(t, a)
}

func TestConnectRefusals(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		program(t, d, nil)
		served := d.dial
		d.dial = func(port int) (net.Conn, error) {
			if port == 9002 {
				return nil, os.NewSyscallError("socket", unix.EMFILE)
			}
			return served(port)
		}
		startHTTP(t, node)
		defer stop(t, a)
		for _, c := range []struct {
			id   string
			port int
			want codes.Code
		}{
			{"x", 9001, codes.Aborted},
			{"x", 9002, codes.ResourceExhausted},
			{"x", 0, codes.InvalidArgument},
			{"x", 1 << 17, codes.InvalidArgument},
			{"y", 9000, codes.NotFound},
		} {
			if conn, err := api.Connect(t.Context(),
				node, c.id, c.port); status.Code(err) != c.want {
				t.Errorf("%s, port %d: %v, %v, want %s", c.id, c.port, conn, err, c.want)
			}
		}
		a.connections.Add(mostConnections)
		_, err := api.Connect(t.Context(), node, "x", 9000)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one too many: %v", err)
		}
		if a.connections.Add(-mostConnections) != 0 {
			t.Error("who was refused holds a place")
		}
		a.readers.Add(mostReaders)
		if _, err := api.Connect(t.Context(), node, "x", 9000); err != nil {
			t.Errorf("readers of logs keep a caller from connecting: %v", err)
		}
		a.readers.Add(-mostReaders)
	})
	for name, request := range map[string]*api.StartRequest{
		"another protocol": {Id: "x", MemoryMib: 128, Protocol: "gopher"},
		"another port":     {Id: "x", MemoryMib: 128, Port: 1 << 16},
		"a function": {
			Id: "x", MemoryMib: 128, Protocol: "http", Port: 9000, Probe: "/ready", Init: []byte(
				"{}"),
		},
	} {
		a, d, _ := newAgent(t)
		program(t, d, nil)
		if _, err := a.Start(t.Context(), request); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The end of a sandbox ends its connections and its logs.
func TestStreamsEndWithTheirSandbox(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		if _, err := node.Start(t.Context(),
			&api.StartRequest{Id: "x", MemoryMib: 128}); err != nil {
			t.Fatal(err)
		}
		conn, err := api.Connect(t.Context(), node, "x", 8080)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		d.boxes["x"].logs.Add(wire.LogLine{Stream: "stderr", Text: "one"})
		logs, err := node.Logs(t.Context(), &api.LogsRequest{Id: "x", Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := logs.Recv()
		if err != nil || reply.Line.Text != "one" || reply.Line.Stream != "stderr" {
			t.Errorf("%v, %v", reply, err)
		}
		brief, err := node.Logs(t.Context(), &api.LogsRequest{Id: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := brief.Recv(); err != nil || reply.Line.Text != "one" {
			t.Errorf("%v, %v", reply, err)
		}
		if reply, err := brief.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("what is there has been read: %v, %v", reply, err)
		}
		stop(t, a)
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("its connection ends with %v", err)
		}
		if reply, err := logs.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("its logs end with %v, %v", reply, err)
		}
	})
}

// Wait tells each end, why it came, and whether somebody wanted it.
func TestWaitTellsEnds(t *testing.T) {
	eachWay(t, func(t *testing.T, a *Agent, d *driver, node api.NodeClient) {
		all, err := node.Wait(t.Context(), &api.WaitRequest{})
		if err == nil {
			err = api.Begun(all)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			end    func()
			reason string
			failed bool
		}{
			{func() { stop(t, a) }, "it was stopped", false},
			{func() { d.boxes["x"].end(errors.New("its VMM died")) }, "its VMM died", true},
			{func() { lose(a, "x") }, "it lost its VF : gone", true},
		} {
			if _, err := start(t, a, "x"); err != nil {
				t.Fatal(err)
			}
			one, err := node.Wait(t.Context(), &api.WaitRequest{Id: "x"})
			if err == nil {
				err = api.Begun(one)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.end()
			for _, stream := range []interface{ Recv() (*api.Ended, error) }{all, one} {
				end, err := stream.Recv()
				if err != nil || end.Id != "x" || end.Reason != c.reason || end.Failed != c.failed {
					t.Errorf("%v, %v; want %s, failed: %t", end, err, c.reason, c.failed)
				}
			}
			if end, err := one.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("after the end of the one: %v, %v", end, err)
			}
		}
		late, err := node.Wait(t.Context(), &api.WaitRequest{Id: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := late.Recv(); err != nil || !end.Failed {
			t.Errorf("who asks just after: %v, %v", end, err)
		}
		unknown, err := node.Wait(t.Context(), &api.WaitRequest{Id: "y"})
		if err == nil {
			err = api.Begun(unknown)
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("of a sandbox that never was: %v", err)
		}
	})
}

// A client that takes no ends holds up no other, and learns that it has missed some.
func TestWhoWaitsTooSlowlyIsToldSo(t *testing.T) {
	a, _, _ := newAgent(t)
	all, err := api.Local(a).Wait(t.Context(), &api.WaitRequest{})
	if err == nil {
		err = api.Begun(all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2*keepEnds + 2 {
		a.ends.add(&api.Ended{Id: fmt.Sprint(i)})
	}
	told := 0
	for ; err == nil; told++ {
		_, err = all.Recv()
	}
	kept := len(a.ends.past)
	if status.Code(err) != codes.ResourceExhausted || told > keepEnds+1 || kept > keepEnds {
		t.Errorf("told %d ends, %v; %d are kept", told, err, kept)
	}
}
