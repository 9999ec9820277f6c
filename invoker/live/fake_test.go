package live

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// node is a fake that reports what the test sets, and counts how often it was asked.
type node struct {
	mu     sync.Mutex
	starts *api.StartsReply
	status *api.StatusReply
	err    error
	asked  int
}

func (n *node) Starts(
	_ context.Context, in *api.StartsRequest, _ ...grpc.CallOption,
) (*api.StartsReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	reply := &api.StartsReply{Ended: n.starts.Ended, NowNs: n.starts.NowNs}
	for _, s := range n.starts.Starts {
		if s.EndNs == 0 || in.After < n.starts.Ended || in.After > n.starts.Ended {
			reply.Starts = append(reply.Starts, s)
		}
	}
	return reply, n.err
}

func (n *node) Status(
	context.Context, *api.StatusRequest, ...grpc.CallOption,
) (*api.StatusReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status, n.err
}

func (n *node) now(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func newNode() *node {
	return &node{
		starts: &api.StartsReply{NowNs: time.Now().UnixNano()},
		status: &api.StatusReply{Driver: "sim"},
	}
}

// admit accepts ann by her password. The user name is the namespace.
func admit(w http.ResponseWriter, r *http.Request) *access.Identity {
	user, password, _ := r.BasicAuth()
	if password != "secret" {
		refuse(w, http.StatusUnauthorized, "who are you?")
		return nil
	}
	return &access.Identity{Subject: user, Namespace: user}
}

// serve serves a page over nodes until the test ends.
func serve(
	t *testing.T, burst func(context.Context, string, int) (any, error), nodes ...*node,
) (page *Page, url string) {
	t.Helper()
	cfg := Config{Version: "test", Waiting: func() int { return 3 }, Admit: admit, Burst: burst}
	for _, n := range nodes {
		cfg.Nodes = append(cfg.Nodes, Named{"a", n})
	}
	page = New(cfg)
	server := httptest.NewServer(page.Over(http.NotFoundHandler()))
	t.Cleanup(func() {
		page.Close()
		server.Close()
		http.DefaultClient.CloseIdleConnections()
		page.watch.mu.Lock()
		stopped := page.watch.stopped
		page.watch.mu.Unlock()
		if stopped != nil {
			<-stopped
		}
	})
	return page, server.URL
}

func request(t *testing.T, method, url, user, body string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		r.SetBasicAuth(user, "secret")
	}
	r.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func content(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(plain(t, resp))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func plain(t *testing.T, resp *http.Response) io.Reader {
	t.Helper()
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return resp.Body
	}
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// A follower reads a feed event by event.
type follower struct {
	t     *testing.T
	lines *bufio.Scanner
}

func follow(t *testing.T, url, user string) *follower {
	t.Helper()
	resp := request(t, "GET", url+"/ui/feed", user, "")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("HTTP %d: %s", resp.StatusCode, content(t, resp))
	}
	lines := bufio.NewScanner(plain(t, resp))
	lines.Buffer(nil, 1<<20)
	return &follower{t, lines}
}

func (f *follower) next() (u Update) {
	f.t.Helper()
	for f.lines.Scan() {
		if data, is := strings.CutPrefix(f.lines.Text(), "data: "); is {
			if err := json.Unmarshal([]byte(data), &u); err != nil {
				f.t.Fatal(err)
			}
			return u
		}
	}
	f.t.Fatalf("the feed has ended: %v", errors.Join(f.lines.Err(), io.EOF))
	return u
}

// until reads updates up to the first one that is wanted.
func (f *follower) until(wanted func(Update) bool) Update {
	f.t.Helper()
	for {
		if u := f.next(); wanted(u) {
			return u
		}
	}
}
