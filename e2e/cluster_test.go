package e2e

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch/couchtest"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/node-agent/api"
)

// An agent and an invoker run as commands with this test as their cluster, and the health test
// action passes.
func TestANodeJoinsACluster(t *testing.T) {
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1),
		kfake.SeedTopics(1, "completed0", "health", "invoker7", "cacheInvalidation"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	db := couchtest.New(t)
	revision := db.PutAction(`{"namespace":"whisk.system","name":"invokerHealthTestAction0","exec":{"kind":"nodejs:20","code":"function main(p) { return p; }","binary":false},
	 "parameters":[],"limits":{"timeout":60000,"memory":128,"logs":10,"concurrency":1},"version":"0.0.1","publish":false,"annotations":[],
	 "updated":1700000000000,"entityType":"action"}`, nil)
	run := filepath.Join(t.TempDir(), "run")
	start(t, fastiov(t, "agent", "--sandbox", "sim", "--run-dir", run, "--state-dir", t.TempDir(),
		"--metrics", listenLater(t)))
	node := fastiov(t, "invoker", "--run-dir", run, "--bus", "kafka://"+kafka.ListenAddrs()[0],
		"--invoker-id", "7",
		"--metrics", "", "--couchdb", "http://"+couchtest.User+"@"+db.URL.Host+db.URL.Path,
		"--couchdb-password-file", fileOf(t, couchtest.Password))
	waitForSocket(t, run)
	start(t, node)

	controller, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...),
		kgo.ConsumeTopics("completed0", "health"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(controller.Close)
	asked := message.Activation{
		Transaction: message.NewTransaction("sid_invokerHealthActivation", time.Now()),
		ID:          strings.Repeat("a", 32), Revision: revision,
		Action:     message.Name{Path: "whisk.system", Name: "invokerHealthTestAction0"},
		Controller: message.Controller{Name: "0", InstanceType: "controller"},
	}
	asked.User.Subject, asked.User.Namespace.Name, asked.User.Namespace.UUID = "whisk.system",
		"whisk.system", "u"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := controller.ProduceSync(ctx, &kgo.Record{Topic: "invoker7",
		Value: message.Encode(asked)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	pinged, completed := false, false
	for !pinged || !completed {
		fetches := controller.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("within a minute: pinged %v, completed %v", pinged, completed)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Topic == "health" {
				var ping message.Ping
				pinged = json.Unmarshal(r.Value, &ping) == nil && ping.Name.Instance == 7 &&
					ping.Name.UserMemory > 0
				return
			}
			ack, err := message.DecodeAck(r.Value)
			if err != nil || ack.ActivationID != asked.ID || *ack.SystemError {
				t.Errorf("%v: %s", err, r.Value)
			}
			completed = true
		})
	}
}

// start runs the command in the background and asks it to end when the test ends.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// waitForSocket waits until the agent of run listens.
func waitForSocket(t *testing.T, run string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		if client, hangUp, err := dialNode(run); err == nil {
			_, err := client.Status(t.Context(), &api.StatusRequest{})
			hangUp()
			if err == nil {
				return
			}
		}
		<-tick.C
	}
	t.Fatal("the agent does not answer")
}
