package bus

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/kafkatest"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) {
	if isChild() {
		child()
	}
	leaks.Main(m)
}

// TestAnInvokerAmongControllers runs over a Kafka in this process.
func TestAnInvokerAmongControllers(t *testing.T) {
	life(t, kafkaInProcess(t)...)
}

// TestAnInvokerOnKafka runs over Apache Kafka.
func TestAnInvokerOnKafka(t *testing.T) { life(t, kafkatest.Start(t)) }

// life tests an invoker's duties to its cluster.
func life(t *testing.T, brokers ...string) {
	c := newCluster(t, brokers...)
	echo, quiet := c.action("echo", "echo", 10), c.action("quiet", "echo", 0)
	c.invoke(4)

	t.Run("it pings", func(t *testing.T) {
		var p message.Ping
		c.until("two pings", func() bool {
			if len(c.pings) < 2 {
				return false
			}
			p = c.pings[0]
			return true
		})
		if !p.Enabled || p.Name.String() != "invoker3" ||
			p.Name.UserMemory != 1024 {
			t.Errorf("%+v", p)
		}
	})

	t.Run("the health test action", func(t *testing.T) {
		c.db.PutAction(`{"namespace":"whisk.system","name":"invokerHealthTestAction0","exec":{"kind":"nodejs:20","code":"echo","binary":false},"parameters":[],
		 "limits":{"timeout":60000,"memory":128,"logs":10,"concurrency":1},"version":"0.0.1","publish":false,"annotations":[],"updated":1700000000000,"entityType":"action"}`, nil)
		id := c.ask("invokerHealthTestAction0", "", func(a *message.Activation) {
			a.Transaction.ID, a.Content = "sid_invokerHealthActivation", nil
			a.Action = message.Name{Path: "whisk.system", Name: "invokerHealthTestAction0"}
			a.User.Subject, a.User.Namespace.Name = "whisk.system", "whisk.system"
		})
		got := c.acked(id, 1)
		if kinds(got) != "completion" || *got[0].SystemError || got[0].Instance.Instance != 3 ||
			got[0].Transaction.ID != "sid_invokerHealthActivation" {
			t.Errorf("%s %+v", kinds(got), got[0])
		}
	})

	t.Run("blocking", func(t *testing.T) {
		id := c.ask("echo", echo, func(a *message.Activation) {
			a.Blocking, a.Cause, a.InitArgs = true, strings.Repeat("c", 32), []string{"secret"}
			a.Content = json.RawMessage(`{"a":"<é>","secret":{"b":1}}`)
		})
		got := c.acked(id, 2)
		if kinds(got) != "result completion" {
			t.Fatal(kinds(got))
		}
		r := got[0].Response.Record
		if string(r.Response.Result) != `{"a":"<é>"}` || len(r.Logs) != 0 ||
			annotation(r, "initTime") != 2.0 || annotation(r, "causedBy") != "sequence" {
			t.Errorf("%s", message.Encode(r))
		}
		doc := c.stored(id)
		if logs := doc["logs"].([]any); len(logs) != 1 ||
			!strings.HasSuffix(logs[0].(string), " stdout: ran echo") {
			t.Errorf("%v", doc["logs"])
		}
		if !c.initialised(`"secret":"{\"b\":1}"`) ||
			!c.initialised(`"__OW_ACTIVATION_ID":"`+id+`"`) ||
			c.initialised("__OW_API_KEY\":\"23bc46b1:secret\",\"__OW_ACTIVATION_ID\":\""+id) {
			t.Error("the environment of /init is not as it was asked for")
		}
		c.until("its event", func() bool {
			for _, e := range c.events {
				if e.Body.ActivationID == id {
					return e.Body.CausedBy == "sequence" && e.Body.Name == "guest/echo" &&
						e.UserID != ""
				}
			}
			return false
		})
	})

	t.Run("not blocking", func(t *testing.T) {
		id := c.ask("echo", echo, nil)
		c.stored(id)
		if got := c.acked(id, 1); kinds(got) != "completion" {
			t.Error(kinds(got))
		}
	})

	t.Run("warm, from memory", func(t *testing.T) {
		before := c.db.Gets("guest/echo")
		r := c.acked(c.ask("echo", echo, blocking), 2)[0].Response.Record
		if annotation(r, "initTime") != nil || c.db.Gets("guest/echo") != before {
			t.Errorf("%s, read %d times more", message.Encode(r), c.db.Gets("guest/echo")-before)
		}
	})

	t.Run("read again when the cluster says that it changed", func(t *testing.T) {
		before := c.db.Gets("guest/echo")
		c.send("cacheInvalidation",
			[]byte(`{"key":{"mainId":"guest/echo"},"instanceId":"controller0"}`))
		c.look("the action being read again", func() bool {
			c.acked(c.ask("echo", echo, nil), 1)
			return c.db.Gets("guest/echo") > before
		})
	})

	t.Run("another namespace gets another sandbox", func(t *testing.T) {
		id := c.ask("echo", echo, func(a *message.Activation) {
			a.Blocking, a.User.Namespace.Name = true, "other"
		})
		if r := c.acked(id, 2)[0].Response.Record; annotation(r, "initTime") == nil ||
			r.Namespace != "other" {
			t.Errorf("%s", message.Encode(r))
		}
	})

	t.Run("no logs", func(t *testing.T) {
		id := c.ask("quiet", quiet, blocking)
		if got := c.acked(id, 1); kinds(got) != "combined" ||
			len(c.stored(id)["logs"].([]any)) != 0 {
			t.Error(kinds(got))
		}
		id = c.ask("quiet", quiet, nil)
		c.stored(id)
		if got := c.acked(id, 1); kinds(got) != "completion" {
			t.Error(kinds(got))
		}
	})

	for name, want := range map[string]struct {
		code   string
		status activation.Status
		text   string
	}{
		"an application error": {"fail", activation.ApplicationError, "as it was told"},
		"a developer error":    {"crash", activation.DeveloperError, "command exited"},
		"a refused init":       {"refuse", activation.DeveloperError, "does not compile"},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.ask(want.code, c.action(want.code, want.code, 10), blocking)
			got := c.acked(id, 2)
			outcome := got[0].Response.Record.Response
			if kinds(got) != "result completion" || outcome.StatusCode != want.status ||
				!strings.Contains(string(outcome.Result), want.text) || *got[1].SystemError {
				t.Errorf("%s %s", kinds(got), message.Encode(outcome))
			}
			c.stored(id)
		})
	}

	t.Run("a result that the topic does not take", func(t *testing.T) {
		id := c.ask("large", c.action("large", "large 100000", 10), blocking)
		if got := c.acked(id, 2); kinds(got) != "result-id completion" {
			t.Error(kinds(got))
		}
		if size := c.stored(id)["response"].(map[string]any)["size"].(float64); size < 100000 {
			t.Errorf("kept with %v bytes", size)
		}
		id = c.ask("large", c.action("large", "large 100000", 0), blocking)
		if got := c.acked(id, 1); kinds(got) != "combined-id" {
			t.Error(kinds(got))
		}
	})

	t.Run("what cannot be run is answered", func(t *testing.T) {
		for name, want := range map[string]struct {
			action string
			doc    string
			change func(*message.Activation)
			status activation.Status
			text   string
		}{
			"removed":    {"gone", "", nil, activation.ApplicationError, removed},
			"a sequence": {"sequence", `{"namespace":"guest","name":"sequence","exec":{"kind":"sequence","components":[]},"entityType":"action"}`, nil, activation.InternalError, mismatch},
			"elsewhere":  {"s3", `{"namespace":"guest","name":"s3","exec":{"kind":"nodejs:20","code":{"attachmentName":"s3:a"}},"entityType":"action"}`, nil, activation.InternalError, unread},
			"a number":   {"quiet", "", func(a *message.Activation) { a.Content = json.RawMessage("7") }, activation.InternalError, "neither an object nor an array"},
			"encrypted":  {"quiet", "", func(a *message.Activation) { a.LockedArgs = map[string]string{"n": "aes-256"} }, activation.InternalError, "encrypted"},
		} {
			if want.doc != "" {
				c.db.PutAction(want.doc, nil)
			}
			id := c.ask(want.action, "1-x", func(a *message.Activation) {
				a.Blocking = true
				if want.change != nil {
					want.change(a)
				}
			})
			got := c.acked(id, 1)
			if outcome := got[0].Response.Record.Response; kinds(got) != "combined" ||
				outcome.StatusCode != want.status ||
				!strings.Contains(string(outcome.Result), want.text) {
				t.Errorf("%s: %s %s", name, kinds(got), message.Encode(outcome))
			}
			c.stored(id)
		}
		id := c.ask("gone", "", nil)
		if got := c.acked(id, 1); kinds(got) != "combined-id" {
			t.Errorf("who does not wait: %s", kinds(got))
		}
	})

	t.Run("a message that is none", func(t *testing.T) {
		c.send("invoker3", []byte("garbage"))
		c.send("invoker3", nil)
		c.acked(c.ask("echo", echo, nil), 1)
	})

	t.Run("what is not to be kept is not", func(t *testing.T) {
		no := false
		id := c.ask("echo", echo, func(a *message.Activation) {
			a.User.Limits.StoreActivations = &no
		})
		c.acked(id, 1)
		c.stored(c.ask("echo", echo, nil))
		if c.db.Activation("guest", id) != nil {
			t.Error("it was kept")
		}
	})

	t.Run("no more than there is room for", func(t *testing.T) {
		slow := c.action("slow", "slow 10", 10)
		var ids []string
		for range 60 {
			ids = append(ids, c.ask("slow", slow, nil))
		}
		for _, id := range ids {
			if got := c.acked(id, 1); kinds(got) != "completion" {
				t.Errorf("%s: %s", id, kinds(got))
			}
			c.stored(id)
		}
		c.node.mu.Lock()
		defer c.node.mu.Unlock()
		if c.node.top > 4 {
			t.Errorf("%d at once, with 4 slots", c.node.top)
		}
	})

	t.Run("it leaves when its work is done", func(t *testing.T) {
		ran := func() int {
			c.node.mu.Lock()
			defer c.node.mu.Unlock()
			return c.node.ran
		}
		before := ran()
		id := c.ask("slow", c.action("slow", "slow 300", 10), nil)
		c.look("the run", func() bool { return ran() > before })
		if err := c.leave(); err != nil {
			t.Error(err)
		}
		c.acked(id, 1)
		c.stored(id)
		c.until("the last ping", func() bool { return !c.pings[len(c.pings)-1].Enabled })
	})
}

// initialised reports whether some /init had that text.
func (c *cluster) initialised(text string) bool {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	for _, start := range c.node.starts {
		if strings.Contains(string(start.Init), text) {
			return true
		}
	}
	return false
}

// Two processes with one id would run each other's activations; the second one to come has it.
func TestTheIdOfAnInvokerIsOneProcesss(t *testing.T) {
	c := newCluster(t, kafkatest.Start(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, first, err := join(ctx, c.config(1), c.db.URL, newNode(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- first() }()
	echo := c.action("echo", "echo", 10)
	c.acked(c.ask("echo", echo, nil), 1)
	c.invoke(1)
	select {
	case err := <-ended:
		if !errors.Is(err, ErrUsurped) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the first one goes on")
	}
	c.acked(c.ask("echo", echo, nil), 1)
}

func TestBrokersBehindTLS(t *testing.T) {
	address, secure, client := kafkatest.StartTLS(t)
	c := newCluster(t, address)
	cfg := c.config(1)
	cfg.Brokers, cfg.TLS = []string{secure}, client
	ctx, cancel := context.WithCancel(t.Context())
	_, serve, err := join(ctx, cfg, c.db.URL, c.node, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve() }()
	c.acked(c.ask("echo", c.action("echo", "echo", 10), nil), 1)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	cfg.TLS = &tls.Config{RootCAs: client.RootCAs} // without a certificate of its own
	short, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	if _, _, err := join(short, cfg, c.db.URL, newNode(), t.Output()); err == nil {
		t.Error("a broker that asks for a certificate took an invoker without one")
	}
}

func TestAClusterThatIsNotThereIsSaidToBe(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	cfg := c.config(1)
	cfg.Brokers = []string{"127.0.0.1:1"}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, _, err := join(ctx, cfg, c.db.URL, newNode(), t.Output()); err == nil ||
		!strings.Contains(err.Error(), "test-invoker3") {
		t.Error(err)
	}
	wrong := *c.db.URL
	wrong.Host = "127.0.0.1:1"
	if _, _, err := join(t.Context(), c.config(1), &wrong, newNode(), t.Output()); err == nil ||
		!strings.Contains(err.Error(), "couchdb") {
		t.Error(err)
	}
}

func TestABlockedNamespaceIsAnsweredAndNotRun(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	c.db.Block("guest")
	echo := c.action("echo", "echo", 10)
	c.invoke(1)
	id := c.ask("echo", echo, blocking)
	got := c.acked(id, 1)
	if outcome := got[0].Response.Record.Response; kinds(got) != "combined" ||
		outcome.StatusCode != activation.ApplicationError || c.db.Activations() != 0 ||
		c.db.Gets("guest/echo") != 0 {
		t.Errorf("%s %s", kinds(got), message.Encode(outcome))
	}
}

// An action that a controller lets have ten calls at once has a sandbox for each.
func TestASandboxHasOneCallAtOnceWhateverTheControllerAllows(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	revision := c.actionOf("meet", "meet 2", 10, 10)
	c.invoke(2)
	for _, id := range []string{c.ask("meet", revision, blocking),
		c.ask("meet", revision, blocking)} {
		if got := c.acked(id, 1); got[0].Response.Record.Response.StatusCode != activation.Success {
			t.Errorf("%s", message.Encode(got[0]))
		}
	}
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	if len(c.node.starts) != 2 {
		t.Errorf("two calls at once had %d sandboxes", len(c.node.starts))
	}
}

// VFs are quarantined and come back. The controllers are told, and no more activations run at once
// than there is room for.
func TestRoomThatComesAndGoes(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	slow, meet := c.action("slow", "slow 50", 10), c.action("meet", "meet 2", 10)
	var slots atomic.Int64
	slots.Store(4)
	cfg := c.config(4)
	cfg.Room = func(context.Context) (int, int, error) {
		n := int(slots.Load())
		return n, 256 * n, nil
	}
	c.invokeAs(cfg)
	told := func(n int, enabled bool) {
		t.Helper()
		slots.Store(int64(n))
		c.until(fmt.Sprint("the offer of ", n), func() bool {
			last := c.pings[len(c.pings)-1:]
			return len(last) == 1 && int(last[0].Name.UserMemory) == 256*n &&
				last[0].Enabled == enabled
		})
	}
	c.until("a ping", func() bool { return len(c.pings) > 0 })
	told(1, true)
	var ids []string
	for range 12 {
		ids = append(ids, c.ask("slow", slow, nil))
	}
	for _, id := range ids {
		c.acked(id, 1)
	}
	c.node.mu.Lock()
	top := c.node.top
	c.node.mu.Unlock()
	if top != 1 {
		t.Errorf("%d ran at once where there was room for one", top)
	}
	told(0, false)
	first := c.ask("meet", meet, nil)
	told(2, true)
	second := c.ask("meet", meet, nil)
	c.acked(first, 1)
	c.acked(second, 1)
}

// A commit that fails decides which process runs the messages: this one once it succeeds, or the
// one that gets them again. Never both.
func TestWhatIsNotCommittedDoesNotRun(t *testing.T) {
	kafka := fakeKafka(t)
	c := newCluster(t, kafka.ListenAddrs()...)
	notes := filepath.Join(t.TempDir(), "notes")
	note := c.action("note", "note "+notes, 10)
	c.invoke(4)
	var asked []string
	for _, refusal := range []*kerr.Error{kerr.UnknownMemberID, kerr.UnknownServerError,
		kerr.IllegalGeneration, kerr.CoordinatorNotAvailable, kerr.UnknownServerError} {
		refused := make(chan struct{})
		kafka.ControlKey(int16(kmsg.OffsetCommit),
			func(r kmsg.Request) (kmsg.Response, error, bool) {
				defer close(refused)
				return refuseCommit(r.(*kmsg.OffsetCommitRequest), refusal.Code), nil, true
			})
		for range 3 {
			asked = append(asked, c.ask("note", note, nil))
		}
		select {
		case <-refused:
		case <-time.After(time.Minute):
			t.Fatal("no commit within a minute")
		}
		for _, id := range asked {
			c.acked(id, 1)
		}
	}
	content, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	runs := strings.Fields(string(content))
	slices.Sort(runs)
	if !slices.Equal(runs, asked) {
		t.Errorf("ran\n%s, asked\n%s", runs, asked)
	}
}

func refuseCommit(r *kmsg.OffsetCommitRequest, code int16) kmsg.Response {
	response := r.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, topic := range r.Topics {
		answer := kmsg.NewOffsetCommitResponseTopic()
		answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			refused := kmsg.NewOffsetCommitResponseTopicPartition()
			refused.Partition, refused.ErrorCode = partition.Partition, code
			answer.Partitions = append(answer.Partitions, refused)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response
}

func kafkaInProcess(t *testing.T) []string { return fakeKafka(t).ListenAddrs() }

func fakeKafka(t *testing.T) *kfake.Cluster {
	t.Helper()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	return kafka
}

// BenchmarkActivations counts the activations that a bus over Apache Kafka does in a second, with a
// function that takes no time.
func BenchmarkActivations(b *testing.B) {
	c := newCluster(b, kafkatest.Start(b))
	echo := c.action("echo", "echo", 10)
	c.invoke(64)
	c.acked(c.ask("echo", echo, nil), 1)
	var last []string
	b.ResetTimer()
	for range b.N {
		asked := c.asking("echo", echo)
		c.kafka.Produce(b.Context(), &kgo.Record{Topic: prefix +
			"invoker3", Value: message.Encode(asked)}, nil)
		last = append(last, asked.ID)
	}
	for _, id := range last {
		c.acked(id, 1)
	}
	b.ReportMetric(float64(len(last))/b.Elapsed().Seconds(), "activations/s")
}
