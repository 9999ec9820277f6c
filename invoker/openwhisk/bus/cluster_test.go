package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch/couchtest"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// A node does what the code of an action says, word by word:
//
//	echo      answer with the arguments
//	fail      answer with an error
//	crash     answer with nothing that is JSON
//	refuse    do not initialise
//	large N   answer with N bytes
//	slow N    wait N milliseconds, then echo
//	meet N    wait until N runs are under way, then echo
//	note F    append the activation's id to the file F, then echo
type node struct {
	api.NodeClient // no test calls the other methods
	mu             sync.Mutex
	code           map[string]string
	starts         []*api.StartRequest
	now, top, ran  int // runs under way, the most there were, and all that began
	more           *sync.Cond
}

func newNode() *node {
	n := &node{code: map[string]string{}}
	n.more = sync.NewCond(&n.mu)
	return n
}

// Wait tells no ends.
func (n *node) Wait(
	context.Context, *api.WaitRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[api.Ended], error) {
	return nil, status.Error(codes.Unimplemented, "no such method")
}

// meet waits until that many runs have been under way at once.
func (n *node) meet(ctx context.Context, most int) error {
	defer context.AfterFunc(ctx, func() {
		n.mu.Lock() // callers that looked before wait by now
		defer n.mu.Unlock()
		n.more.Broadcast()
	})()
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.top < most && ctx.Err() == nil {
		n.more.Wait()
	}
	return ctx.Err()
}

func (n *node) Start(_ context.Context, in *api.StartRequest,
	_ ...grpc.CallOption) (*api.StartReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starts = append(n.starts, in)
	var init struct{ Value struct{ Code string } }
	if err := json.Unmarshal(in.Init, &init); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	n.code[in.Id] = init.Value.Code
	now := time.Now().UnixNano()
	reply := &api.StartReply{Id: in.Id, Driver: "sim", InitStatus: 200,
		Spans: []*api.Span{{Stage: "app-init", BeginNs: now, EndNs: now + 2e6}}}
	if init.Value.Code == "refuse" {
		reply.InitStatus, reply.InitReply = 502, []byte(`{"error":"it does not compile"}`)
	}
	return reply, nil
}

func (n *node) Run(ctx context.Context, in *api.RunRequest,
	_ ...grpc.CallOption) (*api.RunReply, error) {
	n.mu.Lock()
	word, argument, _ := strings.Cut(n.code[in.Id], " ")
	n.now++
	n.ran++
	n.top = max(n.top, n.now)
	n.more.Broadcast()
	n.mu.Unlock()
	defer func() { n.mu.Lock(); n.now--; n.mu.Unlock() }()
	var body struct {
		Value        json.RawMessage `json:"value"`
		ActivationID string          `json:"activation_id"`
	}
	if err := json.Unmarshal(in.Body, &body); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	begin := time.Now()
	code, answer := int32(200), string(body.Value)
	switch word {
	case "fail":
		answer = `{"error":"as it was told"}`
	case "crash":
		code, answer = 400, "command exited"
	case "large":
		size, _ := strconv.Atoi(argument)
		answer = `{"large":"` + strings.Repeat("x", size) + `"}`
	case "slow":
		ms, _ := strconv.Atoi(argument)
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	case "meet":
		most, _ := strconv.Atoi(argument)
		if err := n.meet(ctx, most); err != nil {
			return nil, err
		}
	case "note":
		f, err := os.OpenFile(argument, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		fmt.Fprintln(f, body.ActivationID)
		f.Close()
	}
	end := time.Now()
	return &api.RunReply{
		Status: code, Body: []byte(answer), BeginNs: begin.UnixNano(), EndNs: end.UnixNano(),
		Logs: []*api.LogLine{{TimeNs: begin.UnixNano(), Stream: "stdout", Text: "ran " + word}},
	}, nil
}

func (n *node) Stop(context.Context, *api.StopRequest, ...grpc.CallOption) (*api.StopReply, error) {
	return &api.StopReply{}, nil
}

func (n *node) Status(context.Context, *api.StatusRequest,
	...grpc.CallOption) (*api.StatusReply, error) {
	return &api.StatusReply{}, nil
}

// join starts an invoker on n; serving ends with ctx.
func join(
	ctx context.Context, cfg Config, at *url.URL, n *node, log io.Writer,
) (b *Bus, serve func() error, err error) {
	db := couch.New(couch.Config{URL: at, User: couchtest.User, Password: couchtest.Password})
	p := pool.New(pool.Config{KeepAlive: time.Minute, Wait: 30 * time.Second,
		Start: 10 * time.Second}, n)
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	image := func(e couch.Exec) (string, error) { return e.Kind, nil }
	b, err = Join(ctx, cfg, db, &OnPool{Pool: p, Image: image, APIHost: "http://api"})
	closeAll := func() { p.Close(); db.Close() }
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return b, func() error { defer closeAll(); return b.Serve(ctx) }, nil
}

// A cluster is the rest of an OpenWhisk: its controller 0, its database, and one invoker unless a
// test has its own.
type cluster struct {
	t       testing.TB
	brokers []string
	db      *couchtest.Server
	kafka   *kgo.Client
	node    *node
	bus     *Bus         // the invoker
	leave   func() error // ends it
	next    int
	mu      sync.Mutex
	seen    *sync.Cond
	acks    map[string][]message.Ack // by activation, in the order of the topic
	heard   int64                    // the offset behind the last acknowledgement in acks
	pings   []message.Ping
	events  []message.Event
}

const prefix = "test-"

// largest is the size of the largest message that the controller's topic takes.
const largest = 50_000

func newCluster(t testing.TB, brokers ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, brokers: brokers, db: couchtest.New(t), node: newNode(),
		acks: map[string][]message.Ack{}}
	c.seen = sync.NewCond(&c.mu)
	var err error
	if c.kafka, err = kgo.NewClient(kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(prefix+"completed0", prefix+"health", prefix+"events"),
		kgo.FetchMaxWait(100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	admin := kadm.NewClient(c.kafka)
	limit := strconv.Itoa(largest)
	for _, topic := range []string{"completed0", "health", "events", "cacheInvalidation"} {
		if made, err := admin.CreateTopic(t.Context(), 1,
			1, map[string]*string{"max.message.bytes": &limit}, prefix+topic); err != nil ||
			made.Err != nil {
			t.Fatal(topic, err, made.Err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.listen(ctx) }()
	t.Cleanup(func() { cancel(); <-done; c.kafka.Close() })
	return c
}

func (c *cluster) config(slots int) Config {
	return Config{Brokers: c.brokers, Prefix: prefix, Invoker: message.NewInvoker(3, 1024),
		Slots: slots, Events: true}
}

// invoke starts the cluster's invoker, in this process.
func (c *cluster) invoke(slots int) {
	c.t.Helper()
	c.invokeAs(c.config(slots))
}

func (c *cluster) invokeAs(cfg Config) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b, serve, err := join(ctx, cfg, c.db.URL, c.node, c.t.Output())
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	c.bus = b
	done := make(chan error, 1)
	go func() { done <- serve() }()
	c.leave = sync.OnceValue(func() error { cancel(); return <-done })
	c.t.Cleanup(func() {
		if err := c.leave(); err != nil {
			c.t.Error(err)
		}
	})
}

// listen reads what a controller reads, and fails the test for what one could not.
func (c *cluster) listen(ctx context.Context) {
	for {
		fetches := c.kafka.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			var err error
			switch r.Topic {
			case prefix + "completed0":
				c.heard = r.Offset + 1
				var ack message.Ack
				if ack, err = message.DecodeAck(r.Value); err == nil {
					id := ack.ActivationID
					if ack.Response != nil {
						id = ack.Response.ID
					}
					c.acks[id] = append(c.acks[id], ack)
				}
			case prefix + "health":
				var ping message.Ping
				if err = json.Unmarshal(r.Value, &ping); err == nil {
					c.pings = append(c.pings, ping)
				}
			case prefix + "events":
				var event message.Event
				if err = json.Unmarshal(r.Value, &event); err == nil {
					c.events = append(c.events, event)
				}
			}
			if err != nil {
				c.t.Errorf("%s: %v: %s", r.Topic, err, r.Value)
			}
		})
		c.seen.Broadcast()
		c.mu.Unlock()
	}
}

// until waits until the messages heard are enough, or gives up.
func (c *cluster) until(what string, enough func() bool) {
	c.t.Helper()
	late := false
	timer := time.AfterFunc(time.Minute, func() {
		c.mu.Lock()
		late = true
		c.mu.Unlock()
		c.seen.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !enough() {
		if late {
			c.t.Fatalf("not within a minute: %s", what)
		}
		c.seen.Wait()
	}
}

// acked waits for so many acknowledgements of the activation.
func (c *cluster) acked(id string, n int) []message.Ack {
	c.t.Helper()
	c.until(fmt.Sprintf("%d acknowledgements of %s", n, id), func() bool {
		return len(c.acks[id]) >= n
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acks[id]
}

// everyAck returns what has been acknowledged so far, all of it.
func (c *cluster) everyAck() map[string][]message.Ack {
	c.t.Helper()
	topic := prefix + "completed0"
	ends, err := kadm.NewClient(c.kafka).ListEndOffsets(c.t.Context(), topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	c.until("every acknowledgement", func() bool { return c.heard >= end.Offset })
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.acks)
}

// stored waits for the record of the activation, which is kept after it is acknowledged.
func (c *cluster) stored(id string) (doc map[string]any) {
	c.t.Helper()
	c.look("a record of "+id, func() bool { doc = c.db.Activation("guest", id); return doc != nil })
	return doc
}

// look is until for what nobody tells of.
func (c *cluster) look(what string, found func() bool) {
	c.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !found() {
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// action creates guest/NAME with that code and log limit.
func (c *cluster) action(name, code string, logsMB int) (revision string) {
	c.t.Helper()
	return c.actionOf(name, code, logsMB, 1)
}

// actionOf may let a sandbox have several calls at once.
func (c *cluster) actionOf(name, code string, logsMB, concurrency int) (revision string) {
	c.t.Helper()
	return c.db.PutAction(fmt.Sprintf(`{"namespace":"guest","name":%q,"exec":{"kind":"nodejs:20","code":%q,"binary":false},"parameters":[],
	 "limits":{"timeout":60000,"memory":128,"logs":%d,"concurrency":%d},"version":"0.0.1","publish":false,
	 "annotations":[{"key":"provide-api-key","value":false}],"updated":1700000000000,"entityType":"action"}`, name, code, logsMB, concurrency), nil)
}

// ask has the action run; change makes the message a particular one.
func (c *cluster) ask(name, revision string, change func(*message.Activation)) (id string) {
	c.t.Helper()
	asked := c.asking(name, revision)
	if change != nil {
		change(asked)
	}
	c.send("invoker3", message.Encode(asked))
	return asked.ID
}

// asking returns the message that a controller sends.
func (c *cluster) asking(name, revision string) *message.Activation {
	c.next++
	asked := message.Activation{
		Transaction: message.NewTransaction("t"+strconv.Itoa(c.next), time.Now()),
		Action:      message.Name{Path: "guest", Name: name, Version: "0.0.1"},
		Revision:    revision, ID: fmt.Sprintf("%032x", c.next),
		Controller: message.Controller{Name: "0", InstanceType: "controller"},
		Content:    json.RawMessage(`{"n":` + strconv.Itoa(c.next) + `}`),
	}
	asked.User.Subject = "guest"
	asked.User.Namespace.Name, asked.User.Namespace.UUID = "guest",
		"23bc46b1-71f6-4ed5-8c54-816aa4f8c502"
	asked.User.AuthKey.APIKey = "23bc46b1:secret"
	return &asked
}

func (c *cluster) send(topic string, value []byte) {
	c.t.Helper()
	if err := c.kafka.ProduceSync(c.t.Context(), &kgo.Record{Topic: prefix + topic, Value: value}).
		FirstErr(); err != nil {
		c.t.Fatal(err)
	}
}

func blocking(a *message.Activation) { a.Blocking = true }

// kinds names acknowledgements as a reader would.
func kinds(acks []message.Ack) string {
	var list []string
	for _, a := range acks {
		name := "completion"
		switch {
		case a.Response != nil && a.Instance != nil:
			name = "combined"
		case a.Response != nil:
			name = "result"
		}
		if a.Response != nil && a.Response.Record == nil {
			name += "-id"
		}
		list = append(list, name)
	}
	return strings.Join(list, " ")
}

// annotation of a record that is in an acknowledgement.
func annotation(r *message.Record, key string) any {
	for _, a := range r.Annotations {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}
