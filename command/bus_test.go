package command

import (
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/node-agent/api"
)

func TestBusFlags(t *testing.T) {
	good := busFlags{kafka: "kafka://a:9092,b:9093",
		couchdb: "http://admin@couch:5984/whisk_local_", instance: 0, prefix: "p-"}
	cfg, db, err := good.parse()
	if err != nil || len(cfg.Brokers) != 2 || cfg.Brokers[1] != "b:9093" || cfg.Prefix != "p-" ||
		db.User != "admin" {
		t.Errorf("%v %+v %+v", err, cfg, db)
	}
	secure := good
	secure.kafka = "kafkas://a:9093"
	if cfg, _, err := secure.parse(); err != nil || cfg.TLS == nil || cfg.Brokers[0] != "a:9093" {
		t.Errorf("%v %+v", err, cfg)
	}
	for want, change := range map[string]func(*busFlags){
		"kafka://HOST":   func(b *busFlags) { b.kafka = "nats://a:1" },
		"HOST:PORT":      func(b *busFlags) { b.kafka = "kafka://a" },
		"--invoker-id":   func(b *busFlags) { b.instance = -1 },
		"--couchdb http": func(b *busFlags) { b.couchdb = "" },
		"kafkas://a":     func(b *busFlags) { b.keys.ca = "ca.pem" },
		"no certificate": func(b *busFlags) {
			b.kafka, b.keys.ca = "kafkas://a:9093", "bus_test.go"
		},
		"--bus-ca":   func(b *busFlags) { b.kafka, b.keys.ca = "kafkas://a:9093", "absent.pem" },
		"--bus-cert": func(b *busFlags) { b.kafka, b.keys.cert = "kafkas://a:9093", "absent.pem" },
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
	for kind, want := range map[string]string{"nodejs:20": "nodejs:18",
		"nodejs:default": "nodejs:18", "python:3.11": "python:3", "python:3-ai": "python:3-ai",
		"blackbox": "example/it", "cobol:60": ""} {
		got, err := nodeImage(couch.Exec{Kind: kind, Image: "example/it"})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v", kind, got, err)
		}
	}
}
