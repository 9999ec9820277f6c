package coldstart

import (
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// TestTheRecordHasThePull: a start that waited for a pull says what that did, and another nothing.
func TestTheRecordHasThePull(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	placed := pool.Placement{Placed: at, Start: &api.StartReply{
		Pull: &api.Pull{Received: 12_300_000, Layers: 8, Fetched: 3, WaitedNs: 4_000_000}}}
	const want = "pulled 12.3 MB, 3 of 8 layers, after 4 ms of waiting for others"
	if got := Of(at, placed, nil, at).Pull; got == nil || got.String() != want {
		t.Errorf("%v, want %s", got, want)
	}
	placed.Start.Pull = nil
	if got := Of(at, placed, nil, at).Pull; got != nil {
		t.Errorf("an image that was here was pulled: %v", got)
	}
}

// A VF that comes up beside the program is in the record, and what waited for it.
func TestTheRecordHasTheGate(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := func(ms int64) int64 { return begin.Add(time.Duration(ms) * time.Millisecond).UnixNano() }
	agent := &api.Span{Stage: string(timeline.Agent), BeginNs: at(0), EndNs: at(600)}
	vf := &api.Span{Stage: string(timeline.VFDriver), BeginNs: at(100), EndNs: at(900)}
	placed := pool.Placement{Placed: begin, Start: &api.StartReply{Spans: []*api.Span{agent}}}
	run := &api.RunReply{BeginNs: at(600), EndNs: at(1000), Gate: &api.Gate{
		Open: true, Held: 3, Dropped: 1, FirstNs: at(700), OpenedNs: at(900),
		IdleNs: int64(100 * time.Millisecond), // of the 500 before the guest was ready
		Spans:  []*api.Span{vf},
		Memory: &api.Footprint{At: string(timeline.BusMaster), Resident: 1},
	}}
	r := Of(begin, placed, run, begin.Add(time.Second))
	want := Gate{Open: true, Held: 3, Dropped: 1, HeldMs: 200}
	if r.Gate == nil || *r.Gate != want || *r.VFAlone != 300 {
		t.Errorf("gate %+v, %v ms alone; want %+v and 300", r.Gate, *r.VFAlone, want)
	}
	if len(r.Memory) != 1 || r.Memory[0].At != timeline.BusMaster {
		t.Errorf("memory %+v", r.Memory)
	}
	if got := r.Stages[timeline.VFDriver]; got != 500 {
		t.Errorf("%v ms of %v", got, timeline.VFDriver)
	}

	run.Gate = nil // the VF was waited for
	placed.Start.Spans = []*api.Span{
		{Stage: string(timeline.Agent), BeginNs: at(0), EndNs: at(100)}, vf}
	run.BeginNs = at(900)
	if r = Of(begin, placed, run, begin.Add(time.Second)); r.Gate != nil || *r.VFAlone != 800 {
		t.Errorf("gate %+v, %v ms alone; want none and 800", r.Gate, *r.VFAlone)
	}
}
