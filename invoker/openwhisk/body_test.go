package openwhisk

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/share"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api"
)

// newClientWith lets requests and waiting calls hold so many MiB at most. Running calls wait until
// open is called, or the test has ended.
func newClientWith(t *testing.T, mib int64) (c *client, open func()) {
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	c = newClientOf(t, Config{
		Blocking: 5 * time.Second, Bodies: mib << 20,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute},
	})
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		<-gate
		return reply(200, `{}`), nil
	}
	c.node.forgetful = true
	t.Cleanup(open)
	return c, open
}

// large holds arguments of nearly a MiB.
var large = `{"a":"` + strings.Repeat("x", 1<<20-1000) + `"}`

// A namespace cannot hold so much memory that others get none, with its key or without one.
func TestCallsOfOneLeaveMemoryToOthers(t *testing.T) {
	for name, call := range map[string]func(*client) reached{
		"by its key": func(c *client) reached { return c.do("POST", "actions/hello", large) },
		"by none": func(c *client) reached {
			return c.web("POST", "guest/default/hello.json", large,
				"Content-Type: application/json")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, open := newClientWith(t, 16)
			c.putWeb("hello", "", "")
			c.api.cfg.Blocking = 50 * time.Millisecond
			for n := 0; n < 8; n++ {
				c.want(202, call(c))
			}
			got := call(c)
			c.want(429, got)
			if got.Header.Get("Retry-After") == "" ||
				!strings.Contains(string(got.body), `"code"`) {
				t.Errorf("%v %s", got.Header, got.body)
			}
			series := "fastiov_throttled_requests_total " + access.BytesAtOnce
			if n := c.counted(series); n != 1 {
				t.Errorf("%v are counted as refused", n)
			}
			ann := c.as("ann", access.Limits{})
			ann.put("hello")
			for n := 0; n < 4; n++ {
				ann.want(202, ann.do("POST", "actions/hello", large))
			}
			ann.want(429, ann.do("POST", "actions/hello", large))
			open()
			c.api.running.Wait()
			if n := c.api.bodies.Used(); n != 0 {
				t.Errorf("%d bytes are held when all calls have ended", n)
			}
			if got := call(c); got.StatusCode > 202 {
				t.Errorf("HTTP %d %s", got.StatusCode, got.body)
			}
		})
	}
}

// When there is no room for anybody, the answer does not blame the caller.
func TestWhatNobodyHasMemoryForIsRefusedForNow(t *testing.T) {
	c, _ := newClientWith(t, 1)
	c.put("hello")
	got := c.do("POST", "actions/hello", large)
	c.want(503, got)
	if got.Header.Get("Retry-After") == "" {
		t.Errorf("%v", got.Header)
	}
	c.want(503, c.do("PUT", "actions/code", strings.Replace(hello, "return args", large[6:], 1)))
	c.want(202, c.do("POST", "actions/hello", "{}"))
	if n := c.counted("fastiov_throttled_requests_total " + access.BytesOfAll); n != 2 {
		t.Errorf("%v are counted as refused", n)
	}
}

// A caller who announces much and sends little holds little.
func TestSlowSendersHoldLittle(t *testing.T) {
	c, open := newClientWith(t, 16)
	c.put("hello")
	address := c.serve(func(*http.Server) {})
	const senders = 200
	for range senders {
		c.dial(address, c.head("POST", "actions/hello?blocking=true", 1<<20)+`{"a":`)
	}
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	for c.api.bodies.Used() < senders*firstRead {
		time.Sleep(time.Millisecond)
	}
	if n := c.api.bodies.Used(); n > senders*firstRead || owner.UnderWay() != senders {
		t.Errorf("%d bytes are held by %d senders", n, owner.UnderWay())
	}
	open()
	c.want(200, c.do("POST", "actions/hello?blocking=true", large))
}

// A body is read into a buffer that grows with it and is in the end no larger than need be.
func TestBodiesAreReadAsTheyCome(t *testing.T) {
	c, _ := newClientWith(t, 64)
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int64{1, firstRead, firstRead + 1, 1 << 20, 3<<20 + 7} {
		for _, read := range []func(io.Reader) io.Reader{
			func(r io.Reader) io.Reader { return r }, iotest.HalfReader, iotest.DataErrReader,
		} {
			text := strings.Repeat("x", int(length))
			h := c.api.holding(owner)
			body, err := h.read(read(strings.NewReader(text)), length)
			if err != nil || string(body) != text || int64(cap(body)) != length || h.n != length {
				t.Errorf("%d of %d bytes in %d, %d held: %v", len(body), length,
					cap(body), h.n, err)
			}
			h.end()
		}
		h := c.api.holding(owner)
		if _, err := h.read(strings.NewReader("x"), length+1); err != io.EOF {
			t.Errorf("one that ends early: %v", err)
		}
		h.end()
	}
	if owner.Bytes.Held() != 0 {
		t.Errorf("%d held", owner.Bytes.Held())
	}
}

// The result that a step hands to the next counts while that one waits.
func TestResultsInASequenceCount(t *testing.T) {
	c, _ := newClientWith(t, 16)
	grown, gate := make(chan struct{}, 100), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	c.node.run = func(_ context.Context, in *api.RunRequest) (*api.RunReply, error) {
		if !strings.Contains(string(in.Body), "xxx") {
			return reply(200, large), nil
		}
		grown <- struct{}{}
		<-gate
		return reply(200, `{}`), nil
	}
	c.put("grow")
	c.put("keep")
	c.want(200, c.putSequence("both", "grow", "keep"))
	for range 10 {
		c.want(202, c.do("POST", "actions/both", "{}"))
	}
	for range 8 {
		<-grown
	}
	if n := c.api.bodies.Used(); n < 7<<20 || n > 8<<20 {
		t.Errorf("%d bytes are held", n)
	}
	open()
	c.api.running.Wait()
	if n := c.api.bodies.Used(); n != 0 {
		t.Errorf("%d bytes are held at the end", n)
	}
}

// The fires of a trigger count, and end with the calls that they made.
func TestFiresCount(t *testing.T) {
	c, open := newClientWith(t, 16)
	c.put("hello")
	c.want(200, c.do("PUT", "triggers/t", "{}"))
	c.want(200, c.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
	for range 6 {
		c.want(202, c.do("POST", "triggers/t", large))
	}
	if n := c.api.bodies.Used(); n < 5<<20 || n > 6<<20 {
		t.Errorf("%d bytes are held by six calls", n)
	}
	open()
	c.api.running.Wait()
	if n := c.api.bodies.Used(); n != 0 {
		t.Errorf("%d bytes are held at the end", n)
	}
}

// A writing observes how much is held while an answer is written.
type writing struct {
	*httptest.ResponseRecorder
	held func() int64
	most int64
}

func (w *writing) Write(p []byte) (int, error) {
	w.most = max(w.most, w.held())
	return w.ResponseRecorder.Write(p)
}

// An answer counts until it is written, so a slow reader holds the answer that he is sent.
func TestAnswersCountWhileTheyAreWritten(t *testing.T) {
	c, open := newClientWith(t, 16)
	open()
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return reply(200, large), nil
	}
	c.putWeb("hello", "", "")
	c.want(200, c.do("PUT", "actions/code",
		strings.Replace(hello, "return args", large[6:len(large)-2], 1)))
	id := c.want(200, c.do("POST", "actions/hello?blocking=true", "{}"))["activationId"].(string)
	logged := &activation.Record{ID: store.NewID(), Namespace: "guest", Name: "a", Path: "guest/a",
		Start: time.Now(), Logs: []string{large[6 : len(large)-2]}}
	c.api.cfg.Store.Finish(logged.Kept())
	pairs := `[{"key":"a","value":` + large[5:len(large)-1] + `}]`
	c.want(200, c.do("PUT", "packages/p", "{}"))
	c.want(200, c.do("PUT", "actions/p/a", `{"parameters":`+pairs+","+hello[1:]))
	c.want(200, c.do("PUT", "triggers/t", `{"annotations":`+pairs+"}"))
	for method, path := range map[string]string{
		"GET of code": "namespaces/_/actions/code", "GET of a record": "namespaces/_/activations/" +
			id,
		"POST":                 "namespaces/_/actions/hello?blocking=true",
		"GET of a web action":  "web/guest/default/hello.json",
		"GET of parameters":    "namespaces/_/actions/p/a?code=false",
		"GET of a package":     "namespaces/_/packages/p",
		"GET of a trigger":     "namespaces/_/triggers/t",
		"GET of triggers":      "namespaces/_/triggers",
		"GET of logs":          "namespaces/_/activations/" + logged.ID + "/logs",
		"GET of a result":      "namespaces/_/activations/" + id + "/result",
		"GET of whole records": "namespaces/_/activations?docs=true&limit=2",
	} {
		verb, _, _ := strings.Cut(method, " ")
		r := httptest.NewRequest(verb, "http://127.0.0.1:3233/api/v1/"+path, nil)
		r.SetBasicAuth(c.key.UUID, c.key.Secret)
		w := &writing{ResponseRecorder: httptest.NewRecorder(), held: c.api.bodies.Used}
		c.api.ServeHTTP(w, r)
		if w.Code != 200 || w.Body.Len() < 1<<20-2000 || w.most < 1<<20-2000 {
			t.Errorf("%s: HTTP %d, %d bytes are held for %d", method, w.Code, w.most, w.Body.Len())
		}
		if n := c.api.bodies.Used(); n != 0 {
			t.Errorf("%s: %d bytes are held at the end", method, n)
		}
	}
}

// An answer that there is no room for is refused before it is made.
func TestAnswersWithoutRoomAreRefused(t *testing.T) {
	c, _ := newClientWith(t, 7)
	logged := &activation.Record{ID: store.NewID(), Namespace: "guest", Name: "a", Path: "guest/a",
		Start: time.Now(), Logs: []string{large, large}}
	c.api.cfg.Store.Finish(logged.Kept())
	c.want(200, c.do("PUT", "packages/p", "{}"))
	for _, name := range []string{"p/a", "p/b", "p/c", "p/d"} {
		c.want(200, c.do("PUT", "actions/"+name, `{"parameters":[{"key":"a","value":`+
			large[5:len(large)-1]+`}],`+hello[1:]))
	}
	for _, path := range []string{"packages/p", "activations/" + logged.ID,
		"activations/" + logged.ID + "/logs", "activations?docs=true"} {
		if got := c.do("GET", path, ""); got.StatusCode != 503 {
			t.Errorf("%s: HTTP %d, %d bytes", path, got.StatusCode, len(got.body))
		}
	}
	if n := c.api.bodies.Used(); n != 0 {
		t.Errorf("%d bytes are held at the end", n)
	}
}

// A list of small rows is answered whatever else runs, however long it is.
func TestListsOfSmallRowsAreAnswered(t *testing.T) {
	c, _ := newClientWith(t, 7)
	const most = 200
	for range most {
		r := &activation.Record{ID: store.NewID(), Namespace: "guest", Path: "guest/a",
			Name: strings.Repeat("a", 200), Start: time.Now()}
		c.api.cfg.Store.Finish(r.Kept())
	}
	calls := &share.Part{}
	c.api.bodies.Force(calls, c.api.bodies.Size())
	defer c.api.bodies.Give(calls, c.api.bodies.Size())
	got := c.do("GET", fmt.Sprint("activations?limit=", most), "")
	if rows := strings.Count(string(got.body), `"activationId"`); got.StatusCode != 200 ||
		rows != most || len(got.body) < flushAt {
		t.Errorf("HTTP %d, %d rows in %d bytes", got.StatusCode, rows, len(got.body))
	}
}
