package openwhisk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api"
)

// promises returns the promises of this invoker that the store holds.
func (c *client) promises() []store.Accepted {
	c.t.Helper()
	left, err := c.api.cfg.Store.Unfinished(context.Background(), c.api.cfg.Invoker)
	if err != nil {
		c.t.Fatal(err)
	}
	return left
}

func patient(s store.Store) Config {
	return Config{Store: s, Invoker: "one", Blocking: time.Minute,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute}}
}

// held makes a node whose runs, or starts, wait for the gate; reached tells of each.
func (c *client) held(starts bool) (reached, gate chan struct{}) {
	reached, gate = make(chan struct{}, 16), make(chan struct{})
	wait := func() {
		reached <- struct{}{}
		<-gate
	}
	if starts {
		c.node.start = func(in *api.StartRequest) (*api.StartReply, error) {
			wait()
			return nil, errors.New("too late")
		}
	} else {
		c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
			wait()
			return reply(200, `{"late":true}`), nil
		}
	}
	return reached, gate
}

// TestWhatWasPromisedIsKeptByTheNext: of two promises, one was sent when the invoker vanished, the
// other was not.
// succeeded returns the next invoker, as if c had been killed with two promises, and what became of
// them: the run of the first was sent, that of the other was not.
func (c *client) succeeded(config Config, sent, unsent string) (
	next *client, failed, ran map[string]any,
) {
	c.t.Helper()
	left := c.promises()
	if len(left) != 2 || left[0].ID != sent || !left[0].Sent || left[1].ID != unsent ||
		left[1].Sent {
		c.t.Fatalf("promised: %+v", left)
	}
	next = newClientOf(c.t, config)
	next.api.running.Wait()
	if left := next.promises(); len(left) != 0 {
		c.t.Errorf("still promised: %+v", left)
	}
	failed = next.want(200, next.do("GET", "activations/"+sent, ""))
	if failed["response"].(map[string]any)["status"] != "whisk internal error" {
		c.t.Errorf("what was sent: %v", failed)
	}
	return next, failed, next.want(200, next.do("GET", "activations/"+unsent, ""))
}

func TestWhatWasPromisedIsKeptByTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	kept := openStore(t, path)
	first := newClientOf(t, patient(kept))
	first.put("sent")
	first.put("unsent")
	reached, gateRuns := first.held(false)
	sent := first.want(202, first.do("POST", "actions/sent", `{"n":1}`))["activationId"].(string)
	<-reached
	reached, gateStarts := first.held(true)
	unsent := first.want(202, first.do("POST",
		"actions/unsent", `{"n":2}`))["activationId"].(string)
	<-reached
	next, failed, ran := first.succeeded(patient(kept), sent, unsent)
	if notes(failed)["path"] != "guest/sent" {
		t.Errorf("what was sent: %v", failed)
	}
	if got := fmt.Sprint(ran["response"].(map[string]any)["result"]); got != "map[n:2]" {
		t.Errorf("what was not sent: %v", ran)
	}
	if _, runs := next.node.asked(); len(runs) != 1 {
		t.Errorf("%d runs", len(runs))
	}

	close(gateRuns)
	close(gateStarts)
	first.api.running.Wait()
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	again := openStore(t, path)
	if n, err := again.Count(t.Context(), store.Filter{Namespace: "guest"}); n != 2 || err != nil {
		t.Errorf("%d records of two activations, %v", n, err)
	}
	if r, err := recordIn(t, again, sent); err != nil ||
		r.Response.Status != activation.InternalError {
		t.Errorf("a second record took the place of the first: %+v, %v", r, err)
	}
}

func TestABlockingCallIsPromisedWhenItStopsWaiting(t *testing.T) {
	c := newClientOf(t, patient(openStore(t, filepath.Join(t.TempDir(), "store"))))
	c.put("hello")
	reached, gate := c.held(false)
	id := c.want(202, c.do("POST", "actions/hello?blocking=true&timeout=1", "{}"))["activationId"]
	<-reached
	left := c.promises()
	if len(left) != 1 || left[0].ID != id || !left[0].Sent {
		t.Fatalf("promised: %+v", left)
	}
	close(gate)
	c.api.running.Wait()
	c.want(200, c.do("GET", "activations/"+id.(string), ""))
	if left := c.promises(); len(left) != 0 {
		t.Errorf("still promised: %+v", left)
	}
}

func TestABlockingCallThatIsAnsweredIsNotPromised(t *testing.T) {
	c := newClientOf(t, patient(brokenPromises{openStore(t, filepath.Join(t.TempDir(), "store"))}))
	c.put("hello")
	c.result("actions/hello", "{}")
	got := c.do("POST", "actions/hello", "{}")
	c.want(503, got) // nothing was promised, so nothing runs
	if _, runs := c.node.asked(); len(runs) != 1 {
		t.Errorf("%d runs", len(runs))
	}
}

// brokenPromises is a store whose disk is full.
type brokenPromises struct{ store.Store }

func (brokenPromises) Accept(context.Context, store.Accepted) error {
	return errors.New("no space left on device")
}

// unnoted is a store that fails after the promise was made.
type unnoted struct{ store.Store }

func (unnoted) Sent(context.Context, string) error { return errors.New("input/output error") }

func TestARunThatCannotBeNotedIsNotSent(t *testing.T) {
	c := newClientOf(t, patient(unnoted{openStore(t, filepath.Join(t.TempDir(), "store"))}))
	c.put("hello")
	c.node.obedient = true
	id := c.want(202, c.do("POST", "actions/hello", "{}"))["activationId"].(string)
	c.api.running.Wait()
	m := c.want(200, c.do("GET", "activations/"+id, ""))
	if response := m["response"].(map[string]any); response["status"] != "whisk internal error" {
		t.Errorf("response: %v", response)
	}
	if _, runs := c.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs", len(runs))
	}
}

func TestWhatCloseKeepsFromBeingSentStaysPromised(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	c := newClientOf(t, patient(kept))
	c.put("hello")
	reached, gate := c.held(true)
	id := c.want(202, c.do("POST", "actions/hello", `{"n":3}`))["activationId"].(string)
	<-reached
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c.api.Close()
	}()
	for !c.api.closing.Load() { // Close has begun, and waits for the start
		runtime.Gosched()
	}
	close(gate)
	<-closed
	next := newClientOf(t, patient(kept))
	next.api.running.Wait()
	if got := next.want(200, next.do("GET", "activations/"+id+
		"/result", "")); fmt.Sprint(got["result"]) != "map[n:3]" {
		t.Errorf("result: %v", got)
	}
}

// In whatever order a call is promised, sent and finished, and wherever the process ends, the store
// knows of a promise until there is a record of it, and that it was sent if it was.
func TestAPromiseHoldsInAnyOrder(t *testing.T) {
	c := newClientOf(t, patient(openStore(t, filepath.Join(t.TempDir(), "store"))))
	c.put("hello")
	on, _ := c.api.catalog.actions.get("guest", "hello")
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		v := c.api.invocation(call{user: owner, on: &on.plain, arguments: []byte("{}"),
			accepted: time.Now()})
		var promised, sent, finished bool
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"promise", "markSent", "finish"}).Draw(rt, "step") {
			case "promise":
				if err := v.promise(t.Context()); err != nil {
					rt.Fatal(err)
				}
				promised = promised || !finished
			case "markSent":
				if finished {
					continue
				}
				if err := v.markSent(t.Context()); err != nil {
					rt.Fatal(err)
				}
				sent = true
			case "finish":
				if finished {
					continue
				}
				v.finish(v.failed(activation.Success, ""))
				finished = true
			}
			left := c.promises()
			if (len(left) == 1) != (promised && !finished) ||
				len(left) == 1 && left[0].Sent != sent {
				rt.Fatalf("promised %v, sent %v, finished %v; the store has %+v", promised, sent,
					finished, left)
			}
			if _, err := c.api.cfg.Store.Get(t.Context(), "guest", v.id); (err == nil) != finished {
				rt.Fatalf("finished %v, its record: %v", finished, err)
			}
		}
		if !finished {
			v.finish(v.failed(activation.Success, ""))
		}
	})
}

// A trigger that was fired has a record, though its invoker ended before that was on the disk: it
// is not fired again.
func TestAFiredTriggerIsPromised(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	first := newClientOf(t, patient(unkept{kept}))
	first.put("hello")
	first.want(200, first.do("PUT", "triggers/t", `{}`))
	first.want(200, first.do("PUT", "rules/r", `{"trigger":"/_/t","action":"/_/hello"}`))
	id := first.want(202, first.do("POST", "triggers/t", `{}`))["activationId"].(string)
	first.api.running.Wait()
	next := newClientOf(t, patient(kept))
	next.api.running.Wait()
	m := next.want(200, next.do("GET", "activations/"+id, ""))
	if m["name"] != "t" || m["response"].(map[string]any)["status"] != "whisk internal error" {
		t.Errorf("the trigger's record: %v", m)
	}
	if _, runs := next.node.asked(); len(runs) != 0 {
		t.Errorf("%d runs", len(runs))
	}
}

// A call that is taken up counts as under way until it has a record, so a purge of its namespace
// waits for it.
func TestWhatIsTakenUpIsUnderWay(t *testing.T) {
	kept := openStore(t, filepath.Join(t.TempDir(), "store"))
	first := newClientOf(t, patient(kept))
	first.put("hello")
	reached, gate := first.held(true)
	first.want(202, first.do("POST", "actions/hello", "{}"))
	<-reached
	node := &fakeNode{live: map[string]bool{}, stops: make(chan string, 16)}
	again, let := (&client{node: node}).held(true)
	cfg := patient(kept)
	cfg.Key = guest
	next, err := New(cfg, node, nil) // as if the first had been killed here
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	<-again
	usage := next.directory.Usage("guest")
	if n := usage.UnderWay(); n != 1 {
		t.Errorf("%d are under way when one was taken up", n)
	}
	close(let)
	next.running.Wait()
	if n := usage.UnderWay(); n != 0 {
		t.Errorf("%d are under way at the end", n)
	}
	close(gate)
	first.api.running.Wait()
}
