package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A fake node has programs that answer by what they were asked for.
type fake struct {
	node.UnimplementedNodeServer
	starts  atomic.Int64
	refuses atomic.Bool // whoever connects next, as the sandbox has ended
	rude    atomic.Bool // its programs hang up
	room    error
}

func (f *fake) Start(_ context.Context, in *node.StartRequest) (*node.StartReply, error) {
	f.starts.Add(1)
	if f.room != nil || in.Protocol != "http" || in.Namespace != "ann" || in.Image != "a/b:1" {
		return nil, status.Error(codes.ResourceExhausted, "no room")
	}
	return &node.StartReply{Id: in.Id, InitStatus: 200}, nil
}

func (*fake) Stop(context.Context, *node.StopRequest) (*node.StopReply, error) {
	return &node.StopReply{}, nil
}

func (*fake) Status(context.Context, *node.StatusRequest) (*node.StatusReply, error) {
	return &node.StatusReply{}, nil
}

func (f *fake) Connect(s grpc.BidiStreamingServer[node.ConnectRequest, node.ConnectReply]) error {
	first, err := s.Recv()
	switch {
	case err != nil:
		return err
	case first.Port != Port || f.refuses.Swap(false):
		return status.Error(codes.NotFound, "no such sandbox")
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	from, to := io.Pipe()
	go func() {
		for {
			in, err := s.Recv()
			if err != nil {
				to.CloseWithError(err)
				return
			}
			if _, err := to.Write(in.Data); err != nil {
				return
			}
		}
	}()
	r, err := http.ReadRequest(bufio.NewReader(from))
	if err != nil || f.rude.Load() {
		return status.Error(codes.Internal, "it hangs up")
	}
	said := r.Method + " " + r.URL.String() + " of " + r.Host + r.Header.Get("Authorization")
	answer := http.Response{StatusCode: 201, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(said)), ContentLength: int64(len(said))}
	var text strings.Builder
	if err := answer.Write(&text); err != nil {
		return err
	}
	return s.Send(&node.ConnectReply{Data: []byte(text.String()), End: true})
}

// served returns how one asks an API over the fake, as a user and for a path.
func served(t *testing.T, f *fake) func(method, path, key string) (int, string) {
	p := pool.New(pool.Config{KeepAlive: time.Minute, Wait: time.Second, Start: time.Minute},
		node.Local(f))
	t.Cleanup(p.Close)
	server := httptest.NewServer(New(p, func(
		w http.ResponseWriter, r *http.Request,
	) *access.Identity {
		if user, _, _ := r.BasicAuth(); user != "ann" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return nil
		}
		return &access.Identity{Namespace: "ann"}
	}))
	t.Cleanup(server.Close)
	return func(method, path, user string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(user, "secret")
		r.Host = "program.example"
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
}

// A request goes to a sandbox of its image without its key, a second one to the same sandbox, and
// one whose sandbox has ended to another.
func TestRequestsArePassedOn(t *testing.T) {
	f := &fake{}
	ask := served(t, f)
	if code, _ := ask("GET", "/run/a%2Fb:1/", "bob"); code != 401 || f.starts.Load() != 0 {
		t.Errorf("a stranger is answered %d, after %d starts", code, f.starts.Load())
	}
	for i, ends := range []bool{false, false, true} {
		f.refuses.Store(ends)
		code, said := ask("PUT", "/run/a%2Fb:1/x%2Fy?n=1", "ann")
		if code != 201 || said != "PUT /x%2Fy?n=1 of program.example" {
			t.Errorf("request %d is answered %d %q", i, code, said)
		}
	}
	if n := f.starts.Load(); n != 2 {
		t.Errorf("%d sandboxes were started, want one and one for the one that had ended", n)
	}
}

// A request that gets no answer of a program says why, and a program that broke one gets no other.
func TestRequestsThatFail(t *testing.T) {
	f := &fake{}
	ask := served(t, f)
	if code, said := ask("GET", "/run/other/", "ann"); code != 503 {
		t.Errorf("without room: %d %q", code, said)
	}
	f.rude.Store(true)
	if code, said := ask("GET", "/run/a%2Fb:1/", "ann"); code != 502 ||
		!strings.Contains(said, "it hangs up") {
		t.Errorf("of a program that hangs up: %d %q", code, said)
	}
	f.rude.Store(false)
	before := f.starts.Load()
	code, said := ask("GET", "/run/a%2Fb:1/", "ann")
	if starts := f.starts.Load() - before; code != 201 || starts != 1 {
		t.Errorf("after that: %d %q, %d starts", code, said, starts)
	}
}
