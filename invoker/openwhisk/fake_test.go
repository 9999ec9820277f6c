package openwhisk

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api"
)

func TestMain(m *testing.M) {
	if os.Getenv(madeFull) != "" {
		makeFull()
	}
	leaks.Main(m)
}

// fakeNode answers /run with run, and keeps what it was asked.
type fakeNode struct {
	api.NodeClient // no test calls the other methods

	start func(*api.StartRequest) (*api.StartReply, error)
	run   func(context.Context, *api.RunRequest) (*api.RunReply, error)

	mu     sync.Mutex
	live   map[string]bool
	starts []*api.StartRequest
	runs   []*api.RunRequest
	stops  chan string

	forgetful bool // keeps no runs
	obedient  bool // does nothing that was called off
}

// Wait tells no ends.
func (n *fakeNode) Wait(
	context.Context, *api.WaitRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[api.Ended], error) {
	return nil, status.Error(codes.Unimplemented, "no such method")
}

func (n *fakeNode) Start(_ context.Context, in *api.StartRequest,
	_ ...grpc.CallOption) (*api.StartReply, error) {
	n.mu.Lock()
	n.starts = append(n.starts, in)
	start := n.start
	n.live[in.Id] = start == nil
	n.mu.Unlock()
	if start != nil {
		return start(in)
	}
	now := time.Now().UnixNano()
	return &api.StartReply{
		Id: in.Id, Driver: "sim", NetPath: "vf", Nic: "0000:01:10.0", InitStatus: 200,
		Spans: []*api.Span{{Stage: "vmm", BeginNs: now, EndNs: now + 1000},
			{Stage: "app-init", BeginNs: now + 1000, EndNs: now + 2000}},
		Logs: []*api.LogLine{{TimeNs: now, Stream: "stdout", Text: "started"}},
	}, nil
}

func (n *fakeNode) Run(ctx context.Context, in *api.RunRequest,
	_ ...grpc.CallOption) (*api.RunReply, error) {
	n.mu.Lock()
	if n.obedient && ctx.Err() != nil {
		n.mu.Unlock()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	live, run := n.live[in.Id], n.run
	if !n.forgetful {
		n.runs = append(n.runs, in)
	}
	n.mu.Unlock()
	if !live {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	if run != nil {
		return run(ctx, in)
	}
	var body struct{ Value json.RawMessage }
	if err := json.Unmarshal(in.Body, &body); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return reply(200, string(body.Value)), nil
}

func reply(code int32, body string) *api.RunReply {
	now := time.Now().UnixNano()
	return &api.RunReply{
		Status: code, Body: []byte(body), BeginNs: now, EndNs: now + 5000,
		Logs: []*api.LogLine{{TimeNs: now, Stream: "stderr", Text: "ran"}},
	}
}

func (n *fakeNode) Stop(_ context.Context, in *api.StopRequest,
	_ ...grpc.CallOption) (*api.StopReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.live, in.Id)
	select {
	case n.stops <- in.Id:
	default:
	}
	return &api.StopReply{}, nil
}

func (n *fakeNode) Status(context.Context, *api.StatusRequest,
	...grpc.CallOption) (*api.StatusReply, error) {
	return &api.StatusReply{}, nil
}

func (n *fakeNode) asked() (starts []*api.StartRequest, runs []*api.RunRequest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts, n.runs
}

// a client speaks to an API over a fake node.
type client struct {
	t        testing.TB
	api      *API
	node     *fakeNode
	registry *prometheus.Registry
	key      access.Key
}

func newClient(t testing.TB) *client {
	t.Helper()
	return newClientOf(t, Config{Blocking: time.Minute,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute}})
}

func newClientOf(t testing.TB, cfg Config) *client {
	t.Helper()
	c := &client{t: t, node: &fakeNode{live: map[string]bool{}, stops: make(chan string, 16)},
		registry: prometheus.NewRegistry(), key: guest.Key}
	cfg.Key = guest
	if cfg.Store == nil {
		cfg.Store = openStore(t, filepath.Join(t.TempDir(), "store"))
	}
	var err error
	if c.api, err = New(cfg, c.node, c.registry); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.api.Close)
	return c
}

// openStore opens a store that closes with the test, if it was not closed before.
func openStore(t testing.TB, path string) store.Store {
	t.Helper()
	s, err := embedded.Open(path, 64<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

type reached struct {
	*http.Response
	body []byte
}

// do sends a request within the namespace; a path that begins with / is taken from /api/v1.
func (c *client) do(method, path, body string) reached {
	c.t.Helper()
	if !strings.HasPrefix(path, "/") {
		path = "/namespaces/_/" + path
	}
	r := httptest.NewRequest(method, "http://127.0.0.1:3233/api/v1"+path, strings.NewReader(body))
	r.SetBasicAuth(c.key.UUID, c.key.Secret)
	return c.send(r)
}

func (c *client) send(r *http.Request) reached {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.api.ServeHTTP(w, r)
	content, err := io.ReadAll(w.Result().Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return reached{w.Result(), content}
}

// want checks the status and decodes the body.
func (c *client) want(status int, got reached) map[string]any {
	c.t.Helper()
	if got.StatusCode != status {
		c.t.Fatalf("HTTP %d, want %d: %s", got.StatusCode, status, got.body)
	}
	var m map[string]any
	if err := json.Unmarshal(got.body, &m); err != nil {
		c.t.Fatalf("%v: %s", err, got.body)
	}
	return m
}

const hello = `{"exec":{"kind":"python:default","code":"def main(args): return args"}}`

func (c *client) put(name string) {
	c.t.Helper()
	c.want(200, c.do("PUT", "actions/"+name, hello))
}

// counted returns the value of a series, or the number of observations in it; a series is named by
// its metric and its labels' values.
func (c *client) counted(series string) float64 {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			if name == series {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() +
					float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	c.t.Fatalf("there is no series %q", series)
	return 0
}

// recordIn reads a record of the guest's.
func recordIn(t testing.TB, s store.Activations, id string) (r activation.Record, err error) {
	t.Helper()
	body, err := s.Get(t.Context(), "guest", id)
	if err == nil {
		err = r.UnmarshalBinary(body)
	}
	return r, err
}
