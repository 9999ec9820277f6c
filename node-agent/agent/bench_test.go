package agent

import (
	"testing"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// BenchmarkWarmRun is the node's part of a warm call: a run in a simulated sandbox.
func BenchmarkWarmRun(b *testing.B) {
	a, _, _ := newAgent(b)
	a.Starter.Driver = sim.New(sim.Config{Stages: []sim.Step{}})
	begin := &api.StartRequest{Id: "x", MemoryMib: 128, Init: []byte("{}")}
	if _, err := a.Start(b.Context(), begin); err != nil {
		b.Fatal(err)
	}
	request := &api.RunRequest{Id: "x", TimeoutMs: 60_000, Body: []byte(
		`{"value":{"name":"you"},"namespace":"guest","action_name":"/guest/hello",` +
			`"activation_id":"18ea20bce7beda43bd66d2d302aafce5","deadline":"1795283485123"}`)}
	b.ReportAllocs()
	for b.Loop() {
		reply, err := a.Run(b.Context(), request)
		if err != nil || reply.Status != 200 || len(reply.Logs) != 1 {
			b.Fatal(reply, err)
		}
	}
	if _, err := a.Stop(b.Context(), &api.StopRequest{Id: "x"}); err != nil {
		b.Fatal(err)
	}
}
