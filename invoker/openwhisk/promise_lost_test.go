package openwhisk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/redis"
	"github.com/fastiov/fastiov/invoker/store/redis/redistest"
	"github.com/fastiov/fastiov/node-agent/api"
)

// abandoned is a store whose caller leaves while a promise is being written.
type abandoned struct {
	store.Store
	leave context.CancelFunc
}

func (s abandoned) Accept(ctx context.Context, a store.Accepted) error {
	s.leave()
	if err := s.Store.Accept(context.WithoutCancel(ctx), a); err != nil {
		return err
	}
	return ctx.Err()
}

func TestAClientThatLeavesDuringThePromiseIsPromised(t *testing.T) {
	client, leave := context.WithCancel(t.Context())
	c := newClientOf(t, patient(abandoned{openStore(t, filepath.Join(t.TempDir(), "store")),
		leave}))
	c.put("hello")
	r := httptest.NewRequest("POST", "http://127.0.0.1:3233/api/v1/namespaces/_/actions/hello",
		strings.NewReader("{}"))
	r.SetBasicAuth(c.key.UUID, c.key.Secret)
	c.want(202, c.send(r.WithContext(client)))
	c.api.running.Wait()
	if _, runs := c.node.asked(); len(runs) != 1 || len(c.promises()) != 0 {
		t.Errorf("%d runs, still promised: %+v", len(runs), c.promises())
	}
}

// uncertain is a store whose answer is lost after the promise was written.
type uncertain struct{ store.Store }

func (s uncertain) Accept(ctx context.Context, a store.Accepted) error {
	return errors.Join(s.Store.Accept(ctx, a), errors.New("i/o timeout"))
}

func TestWhatWasRefusedForAnUncertainPromiseNeverRuns(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	first := newClientOf(t, patient(uncertain{kept}))
	first.put("hello")
	first.want(200, first.do("PUT", "triggers/t", `{}`))
	first.want(200, first.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
	first.want(503, first.do("POST", "actions/hello", "{}"))
	first.want(503, first.do("POST", "triggers/t", "{}"))
	if left := first.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
	next := newClientOf(t, patient(kept)) // as if the first had been killed here
	next.api.running.Wait()
	if _, runs := next.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs after the caller was told no", len(runs))
	}
	n, err := kept.Count(t.Context(), store.Filter{Namespace: "guest"})
	if n != 2 || err != nil {
		t.Errorf("%d records of two refusals, %v", n, err)
	}
}

// starts has the node's starts succeed when the gate is opened.
func (c *client) starts() (reached, gate chan struct{}) {
	reached, gate = make(chan struct{}, 16), make(chan struct{})
	c.node.start = func(in *api.StartRequest) (*api.StartReply, error) {
		reached <- struct{}{}
		<-gate
		return &api.StartReply{Id: in.Id, InitStatus: 200}, nil
	}
	return reached, gate
}

func TestABlockingCallRefusedForAnUncertainPromiseIsNotSentAfterwards(t *testing.T) {
	c := newClientOf(t, patient(uncertain{openStore(t, filepath.Join(t.TempDir(), "store"))}))
	c.put("hello")
	reached, gate := c.starts()
	c.want(503, c.do("POST", "actions/hello?blocking=true&timeout=1", "{}"))
	<-reached
	close(gate)
	c.api.running.Wait()
	if _, runs := c.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs after the caller was told no", len(runs))
	}
	if left := c.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
}

// Arguments were once promised that are nested too deep for their note to be read again.
func TestAPromiseThatCannotBeReadHasARecord(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	deep := strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	id := store.NewID()
	if err := kept.Accept(t.Context(), store.Accepted{ID: id, Namespace: "guest", At: time.Now(),
		Body: []byte(`{"namespace":"guest","arguments":` + deep + `}`)}); err != nil {
		t.Fatal(err)
	}
	c := newClientOf(t, patient(kept))
	if left := c.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
	got := c.want(200, c.do("GET", "activations/"+id, ""))
	if got["response"].(map[string]any)["status"] != "whisk internal error" ||
		got["name"] != "unknown" || notes(got)["path"] != "guest/unknown" {
		t.Errorf("its record: %v", got)
	}
}

func TestOfTwoProcessesWithOneNameOneRunsAPromise(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	first := newClientOf(t, patient(kept))
	first.put("hello")
	reached, gate := first.starts()
	id := first.want(202, first.do("POST", "actions/hello", `{"n":1}`))["activationId"].(string)
	<-reached

	node := &fakeNode{live: map[string]bool{}, stops: make(chan string, 16)}
	second := &client{t: t, node: node, key: guest.Key}
	sent, let := second.held(false)
	cfg := patient(kept)
	cfg.Key = guest
	var err error
	if second.api, err = New(cfg, node, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.api.Close)
	<-sent // by the second, which has no answer yet
	close(gate)
	first.api.running.Wait()
	close(let)
	second.api.running.Wait()
	_, runs := first.node.asked()
	if _, more := node.asked(); len(runs) != 0 || len(more) != 1 {
		t.Errorf("%d runs by the first, %d by the second", len(runs), len(more))
	}
	r, err := recordIn(t, kept, id)
	if err != nil || r.Response.Status != activation.Success {
		t.Errorf("the record is not that of the run: %+v, %v", r, err)
	}
}

// promisedBy has the store hold a promise of an invoker, made at that time and not sent.
func promisedBy(t *testing.T, kept store.Store, invoker string, at time.Time) (id string) {
	t.Helper()
	body, err := json.Marshal(note{
		Subject: "guest", Namespace: "guest",
		Action: entity.Path{Namespace: "guest", Name: "hello"}, Arguments: []byte("{}"),
	})
	if err != nil {
		t.Fatal(err)
	}
	id = store.NewID()
	a := store.Accepted{ID: id, Invoker: invoker, Namespace: "guest", At: at, Body: body}
	if err := kept.Accept(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAPromiseOlderThanAnHourExpires(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	newClientOf(t, patient(kept)).put("hello")
	old := promisedBy(t, kept, "one", time.Now().Add(-61*time.Minute))
	young := promisedBy(t, kept, "one", time.Now().Add(-59*time.Minute))
	next := newClientOf(t, patient(kept))
	next.api.running.Wait()
	if _, runs := next.node.asked(); len(runs) != 1 {
		t.Errorf("%d runs", len(runs))
	}
	r, err := recordIn(t, kept, old)
	if err != nil || !strings.Contains(string(r.Response.Result), "expired, never started") {
		t.Errorf("the old one's record: %+v, %v", r, err)
	}
	if r, err := recordIn(t, kept, young); err != nil || r.Response.Status != activation.Success {
		t.Errorf("the young one's record: %+v, %v", r, err)
	}
	if left := next.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
}

// The clock was set back by two hours after a promise was made: to the next process it is as one
// made now, and no record tells of less than no time.
func TestAPromiseFromTheFutureIsNew(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	newClientOf(t, patient(kept)).put("hello")
	ahead := time.Now().Add(2 * time.Hour)
	unsent := promisedBy(t, kept, "one", ahead)
	sent := promisedBy(t, kept, "one", ahead)
	if err := kept.Sent(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	next := newClientOf(t, patient(kept))
	next.api.running.Wait()
	for id, want := range map[string]activation.Status{
		unsent: activation.Success, sent: activation.InternalError,
	} {
		r, err := recordIn(t, kept, id)
		if err != nil {
			t.Fatal(err)
		}
		if r.Response.Status != want || r.End.Before(r.Start) || r.Wait < 0 || r.Init < 0 {
			t.Errorf("%+v", r)
		}
	}
}

// The clock is set back while a fire is refused: its record does not end before it starts.
func TestARefusedFireTakesNoLessThanNoTime(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	c := newClientOf(t, patient(brokenPromises{kept}))
	fired := &activation.Record{
		ID: store.NewID(), Namespace: "guest", Name: "t",
		Start: time.Now().Add(time.Hour).Round(0),
	}
	if c.api.promiseFire(t.Context(), fired) == nil {
		t.Fatal("a full disk took a promise")
	}
	r, err := recordIn(t, kept, fired.ID)
	if err != nil || r.End.Before(r.Start) {
		t.Errorf("%+v, %v", r, err)
	}
}

// accepting tells of the times at which calls were accepted.
type accepting struct {
	store.Store
	at chan time.Time
}

func (s accepting) Accept(ctx context.Context, a store.Accepted) error {
	s.at <- a.At
	return s.Store.Accept(ctx, a)
}

// A promise of this process has a reading of the monotonic clock, and ages by that. One that it
// reads back has none.
func TestWhatAPromiseAgesBy(t *testing.T) {
	kept := accepting{openStore(t, filepath.Join(t.TempDir(), "store")), make(chan time.Time, 1)}
	c := newClientOf(t, patient(kept))
	c.put("hello")
	reached, gate := c.held(true)
	c.want(202, c.do("POST", "actions/hello", "{}"))
	<-reached
	made, left := <-kept.at, c.promises()
	close(gate)
	c.api.running.Wait()
	if made == made.Round(0) {
		t.Errorf("a promise was made at %v, by the wall clock alone", made)
	}
	if len(left) != 1 || left[0].At != left[0].At.Round(0) || !left[0].At.Equal(made) {
		t.Errorf("what was promised at %v was read back as %+v", made, left)
	}
}

// openRedis opens a store that closes with the test, if it was not closed before.
func openRedis(t *testing.T, server *redistest.Server) store.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), server.URL(), 64<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestARenamedInvokerKeepsItsPromises(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		kept := openStore(t, filepath.Join(t.TempDir(), "store"))
		renamed(t, func() store.Store { return kept }, func(store.Store) {})
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		renamed(t, func() store.Store { return openRedis(t, server) }, func(s store.Store) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

func renamed(t *testing.T, open func() store.Store, end func(store.Store)) {
	kept := open()
	newClientOf(t, patient(kept)).put("hello") // by "one", which lives on
	former := open()
	if err := former.Take(t.Context(), "the name before"); err != nil {
		t.Fatal(err)
	}
	id := promisedBy(t, former, "the name before", time.Now())
	end(former)
	cfg := patient(open())
	cfg.Invoker = "the name now"
	newClientOf(t, cfg)
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r, err := recordIn(t, kept, id)
		switch {
		case err == nil && r.Response.Status == activation.Success:
			return
		case err == nil || time.Now().After(late):
			t.Fatalf("its record: %+v, %v", r, err)
		}
	}
}

func TestWhoWasReplacedAcceptsNoMoreCalls(t *testing.T) {
	server := redistest.Start(t)
	first := newClientOf(t, patient(openRedis(t, server)))
	first.put("hello")
	first.result("actions/hello", "{}")
	second := newClientOf(t, patient(openRedis(t, server)))
	first.want(503, first.do("POST", "actions/hello", "{}")) // by which it learns that
	first.want(503, first.do("POST", "actions/hello?blocking=true", "{}"))
	if _, runs := first.node.asked(); len(runs) != 1 {
		t.Errorf("%d runs by the first", len(runs))
	}
	second.result("actions/hello", "{}")
}

// doomed is a store that a crash ends before a record is on its way to the disk.
type doomed struct{ store.Store }

func (doomed) Finish(*store.Record) {}

func TestACrashAfterANoRunsNothing(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	first := newClientOf(t, patient(doomed{uncertain{kept}}))
	first.put("hello")
	first.want(503, first.do("POST", "actions/hello", "{}"))
	next := newClientOf(t, patient(kept))
	next.api.running.Wait()
	if _, runs := next.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs after the caller was told no", len(runs))
	}
}

// away is a store that cannot even be told to forget a promise.
type away struct{ store.Store }

func (away) Refuse(context.Context, *store.Record) error { return errors.New("i/o timeout") }

// A caller has waited long enough for a run, and cannot be promised its record.
func TestWhoseCallRunsIsNotToldNo(t *testing.T) {
	for wait := 1; ; wait *= 2 { // until its run is sent by then
		c := newClientOf(t, patient(uncertain{openStore(t, filepath.Join(t.TempDir(), "store"))}))
		c.put("hello")
		_, gate := c.held(false)
		gone := func() (gone any) {
			defer func() { gone = recover() }()
			c.do("POST", fmt.Sprintf("actions/hello?blocking=true&timeout=%d", wait), "{}")
			return nil
		}()
		close(gate)
		c.api.running.Wait()
		if _, runs := c.node.asked(); len(runs) == 0 {
			continue
		}
		if left := c.promises(); gone != http.ErrAbortHandler || len(left) != 0 {
			t.Errorf("the connection is not closed: %v; still promised: %+v", gone, left)
		}
		return
	}
}

func TestWhoMayBePromisedIsNotToldNo(t *testing.T) {
	c := newClientOf(t, patient(away{uncertain{openStore(t, filepath.Join(t.TempDir(), "store"))}}))
	c.put("hello")
	defer func() {
		if gone := recover(); gone != http.ErrAbortHandler {
			t.Errorf("the connection is not closed: %v", gone)
		}
		if _, runs := c.node.asked(); len(runs) != 0 {
			t.Errorf("%d runs", len(runs))
		}
	}()
	c.do("POST", "actions/hello", "{}")
}

// A promised call may wait for a sandbox until the promise expires; a blocking caller is told in
// time that there is no sandbox.
func TestHowLongACallQueues(t *testing.T) {
	const wait = time.Minute
	c := newClientOf(t, Config{Blocking: wait, Pool: pool.Config{KeepAlive: time.Minute, Wait: wait,
		Start: time.Minute}})
	now := time.Now()
	for _, q := range []struct {
		accepted time.Time
		wait     time.Duration
		from, to time.Duration
	}{
		{now, 0, 59 * time.Minute, time.Hour},
		{now.Add(-50 * time.Minute), 0, 9 * time.Minute, 10 * time.Minute},
		{now.Add(-2 * time.Hour), 0, 1, 1},
		{now.Add(2 * time.Hour).Round(0), 0, time.Hour, time.Hour},
		{now, time.Second, 59 * time.Minute, time.Hour},
		{now, wait, 50 * time.Second, wait - time.Second},
	} {
		got := c.api.queueing(&call{accepted: q.accepted}, q.wait)
		if got < q.from || got > q.to {
			t.Errorf("accepted %v ago, waited for %v: queues for %v",
				now.Sub(q.accepted), q.wait, got)
		}
	}
}
