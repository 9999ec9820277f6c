package command

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

	"github.com/fastiov/fastiov/invoker/bus/couch"
	"github.com/fastiov/fastiov/invoker/bus/couch/couchtest"
	"github.com/fastiov/fastiov/invoker/bus/message"
	"github.com/fastiov/fastiov/node-agent/api"
)

// TestANodeJoinsACluster runs an agent and an invoker as commands, and is their cluster: the health test action passes.
func TestANodeJoinsACluster(t *testing.T) {
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "completed0", "health", "invoker7", "cacheInvalidation"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	db := couchtest.New(t)
	revision := db.PutAction(`{"namespace":"whisk.system","name":"invokerHealthTestAction0","exec":{"kind":"nodejs:20","code":"function main(p) { return p; }","binary":false},
	 "parameters":[],"limits":{"timeout":60000,"memory":128,"logs":10,"concurrency":1},"version":"0.0.1","publish":false,"annotations":[],
	 "updated":1700000000000,"entityType":"action"}`, nil)
	run := filepath.Join(t.TempDir(), "run")
	start(t, fastiov(t, "agent", "--sandbox", "sim", "--run-dir", run, "--metrics", listenLater(t)))
	node := fastiov(t, "invoker", "--run-dir", run, "--bus", "kafka://"+kafka.ListenAddrs()[0], "--invoker-id", "7",
		"--metrics", "", "--couchdb", "http://"+couchtest.User+"@"+db.URL.Host+db.URL.Path,
		"--couchdb-password-file", fileOf(t, couchtest.Password))
	waitForSocket(t, run)
	start(t, node)

	controller, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.ConsumeTopics("completed0", "health"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(controller.Close)
	asked := message.Activation{
		Transaction: message.NewTransaction("sid_invokerHealthActivation", time.Now()), ID: strings.Repeat("a", 32), Revision: revision,
		Action: message.Name{Path: "whisk.system", Name: "invokerHealthTestAction0"}, Controller: message.Controller{Name: "0", InstanceType: "controller"},
	}
	asked.User.Subject, asked.User.Namespace.Name, asked.User.Namespace.UUID = "whisk.system", "whisk.system", "u"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := controller.ProduceSync(ctx, &kgo.Record{Topic: "invoker7", Value: message.Encode(asked)}).FirstErr(); err != nil {
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
				pinged = json.Unmarshal(r.Value, &ping) == nil && ping.Name.Instance == 7 && ping.Name.UserMemory > 0
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

// start runs the command in the background and asks it to end when the test does.
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

// waitForSocket waits for the agent in run to listen.
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

func TestBusFlags(t *testing.T) {
	good := busFlags{kafka: "kafka://a:9092,b:9093", couchdb: "http://admin@couch:5984/whisk_local_", instance: 0, prefix: "p-"}
	cfg, db, err := good.parse()
	if err != nil || len(cfg.Brokers) != 2 || cfg.Brokers[1] != "b:9093" || cfg.Prefix != "p-" || db.User != "admin" {
		t.Errorf("%v %+v %+v", err, cfg, db)
	}
	secure := good
	secure.kafka = "kafkas://a:9093"
	if cfg, _, err := secure.parse(); err != nil || cfg.TLS == nil || cfg.Brokers[0] != "a:9093" {
		t.Errorf("%v %+v", err, cfg)
	}
	for want, change := range map[string]func(*busFlags){
		"kafka://HOST":            func(b *busFlags) { b.kafka = "nats://a:1" },
		"HOST:PORT":               func(b *busFlags) { b.kafka = "kafka://a" },
		"--invoker-id":            func(b *busFlags) { b.instance = -1 },
		"--couchdb http":          func(b *busFlags) { b.couchdb = "" },
		"--couchdb-password-file": func(b *busFlags) { b.couchdb = "http://admin:secret@couch:5984/" },
		"kafkas://a":              func(b *busFlags) { b.keys.ca = "ca.pem" },
		"no certificate":          func(b *busFlags) { b.kafka, b.keys.ca = "kafkas://a:9093", "bus_test.go" },
		"--bus-ca":                func(b *busFlags) { b.kafka, b.keys.ca = "kafkas://a:9093", "absent.pem" },
		"--bus-cert":              func(b *busFlags) { b.kafka, b.keys.cert = "kafkas://a:9093", "absent.pem" },
	} {
		bad := good
		change(&bad)
		if _, _, err := bad.parse(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestRoom(t *testing.T) {
	vf := func(state string) *api.VF { return &api.VF{State: state} }
	for name, c := range map[string]struct {
		st            *api.StatusReply
		slots, memory int
	}{
		"memory is short": {&api.StatusReply{MemoryMib: 1000, OverheadMib: 44}, 5, 768},
		"VFs are short":   {&api.StatusReply{MemoryMib: 64000, Vfs: []*api.VF{vf("idle"), vf("leased"), vf("quarantined"), vf("gone")}}, 2, 512},
		"barely one":      {&api.StatusReply{MemoryMib: 150}, 1, 128},
		"nothing":         {&api.StatusReply{}, 0, 128},
	} {
		if slots, memory := room(c.st); slots != c.slots || memory != c.memory {
			t.Errorf("%s: %d slots, %d MB", name, slots, memory)
		}
	}
}

func TestNodeImage(t *testing.T) {
	for kind, want := range map[string]string{"nodejs:20": "nodejs:18", "nodejs:default": "nodejs:18", "python:3.11": "python:3", "python:3-ai": "python:3-ai", "blackbox": "example/it", "cobol:60": ""} {
		got, err := nodeImage(couch.Exec{Kind: kind, Image: "example/it"})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v", kind, got, err)
		}
	}
}
