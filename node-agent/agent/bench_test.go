package agent

import (
	"testing"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// simulating returns an agent whose sandboxes start in no time, and the start and the run of one.
func simulating(b *testing.B) (*Agent, *api.StartRequest, *api.RunRequest) {
	a, _, _ := newAgent(b)
	a.Starter.Driver = sim.New(sim.Config{Stages: sim.Table1(0)})
	b.ReportAllocs()
	return a, &api.StartRequest{Id: "x", MemoryMib: 128, Init: []byte("{}")},
		&api.RunRequest{Id: "x", TimeoutMs: 60_000, Body: []byte(
			`{"value":{"name":"you"},"namespace":"guest","action_name":"/guest/hello",` +
				`"activation_id":"18ea20bce7beda43bd66d2d302aafce5","deadline":"1795283485123"}`)}
}

func startOnce(b *testing.B, a *Agent, request *api.StartRequest) {
	if _, err := a.Start(b.Context(), request); err != nil {
		b.Fatal(err)
	}
}

func runOnce(b *testing.B, a *Agent, request *api.RunRequest) {
	reply, err := a.Run(b.Context(), request)
	if err != nil || reply.Status != 200 || len(reply.Logs) != 1 {
		b.Fatal(reply, err)
	}
}

func stopOnce(b *testing.B, a *Agent) {
	if _, err := a.Stop(b.Context(), &api.StopRequest{Id: "x"}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWarmRun is the node's part of a warm call: a run in a simulated sandbox.
func BenchmarkWarmRun(b *testing.B) {
	a, start, run := simulating(b)
	startOnce(b, a, start)
	for b.Loop() {
		runOnce(b, a, run)
	}
	stopOnce(b, a)
}

// BenchmarkColdStart is the node's part of a call that starts a simulated sandbox, which then ends.
func BenchmarkColdStart(b *testing.B) {
	a, start, run := simulating(b)
	for b.Loop() {
		startOnce(b, a, start)
		runOnce(b, a, run)
		stopOnce(b, a)
	}
}
