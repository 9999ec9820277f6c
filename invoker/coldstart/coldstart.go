// Package coldstart holds the timeline of a start that a call had to wait for, for every API.
package coldstart

import (
	"math"
	"slices"
	"time"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A Record is the timeline of a start. It begins when the request was accepted, and ends when the
// last byte of the answer left the sandbox. Without an answer, it ends with the last known event.
type Record struct {
	Sandbox string `json:"sandbox"`
	Driver  string `json:"driver"`            // "sim": the times are simulated
	NetPath string `json:"netpath,omitempty"` // vf or none
	// the FastIOV optimisations in use
	FastIOV string `json:"fastiov,omitempty"`
	// the release of the guest's kernel
	GuestKernel string `json:"guestKernel,omitempty"`

	VF       string    `json:"vf,omitempty"`
	MAC      string    `json:"mac,omitempty"`
	Address  string    `json:"address,omitempty"`
	Answered bool      `json:"answered"`
	Begin    time.Time `json:"begin"`
	End      time.Time `json:"end"`
	EndToEnd float64   `json:"endToEndMs"`
	Coverage float64   `json:"coverage"`
	// each instant counts for the innermost stage; the sum is EndToEnd
	Stages map[timeline.Stage]float64 `json:"stagesMs"`
	Spans  []timeline.Span            `json:"spans"`
	// how much of the sandbox's memory was resident, and when
	Memory []timeline.Footprint `json:"memory,omitempty"`
	// what the pull of its image did; absent: the image was here
	Pull *timeline.Pull `json:"pull,omitempty"`
	// how long nothing but the VF was waited for: no other stage was open, or packets were held, or
	// nothing ran in the guest before it was ready; not in records of former versions
	VFAlone *float64 `json:"vfAloneMs,omitempty"`
	Gate    *Gate    `json:"gate,omitempty"`

	held timeline.Span // while packets were
	idle time.Duration // of the guest, before it was ready
}

// A Gate says how the VF came up while the program ran.
type Gate struct {
	Open    bool    `json:"open"`    // when the function had answered; else the rest is not known
	Held    uint32  `json:"held"`    // packets that the program sent before
	Dropped uint32  `json:"dropped"` // packets without room, or that could not be sent again
	HeldMs  float64 `json:"heldMs"`  // from the first one until all had been sent again
}

// Of joins the invoker's stages with the node's: queue until the node was asked, and the run, which
// may be nil, as the first byte.
func Of(accepted time.Time, placed pool.Placement, run *api.RunReply, end time.Time) *Record {
	start := placed.Start
	// wall-clock time, like all times of the node; the durations between them are not
	begin := accepted.Round(0)
	queued := placed.Placed.Sub(accepted)
	spans := append(make([]timeline.Span, 0, len(start.Spans)+2),
		timeline.Span{Stage: timeline.Queue, Begin: begin, End: begin.Add(queued)})
	for _, s := range slices.Concat(start.Spans, run.GetGate().GetSpans()) {
		spans = append(spans, timeline.Span{
			Stage: timeline.Stage(s.Stage), Begin: time.Unix(0, s.BeginNs),
			End: time.Unix(0, s.EndNs), Error: time.Duration(s.ErrorNs),
		})
	}
	if run != nil {
		spans = append(spans, timeline.Span{
			Stage: timeline.FirstByte, Begin: time.Unix(0, run.BeginNs),
			End: time.Unix(0, run.EndNs),
		})
	}
	var tl timeline.Timeline
	tl.Add(spans...)
	cold := &Record{
		Sandbox: placed.Sandbox, Driver: start.Driver, NetPath: start.NetPath,
		FastIOV: start.Fastiov, GuestKernel: start.GuestKernel,
		VF: start.Nic, MAC: start.Mac, Address: start.Address,
		Answered: run != nil, Begin: begin, End: end, Spans: tl.Spans(),
	}
	late := []*api.Footprint{run.GetGate().GetMemory(), run.GetMemory()}
	for _, f := range slices.Concat(start.Memory, late) {
		if f != nil {
			cold.Memory = append(cold.Memory, timeline.Footprint{
				At: timeline.Moment(f.At), Resident: f.Resident, Zeroed: f.Zeroed,
				Waited: time.Duration(f.WaitedNs),
			})
		}
	}
	if p := start.Pull; p != nil {
		cold.Pull = &timeline.Pull{Received: p.Received, Layers: int(p.Layers),
			Fetched: int(p.Fetched), Waited: time.Duration(p.WaitedNs)}
	}
	cold.gate(run.GetGate())
	cold.Attribute()
	return cold
}

func (c *Record) gate(g *api.Gate) {
	if g == nil {
		return
	}
	c.Gate = &Gate{Open: g.Open, Held: g.Held, Dropped: g.Dropped}
	c.idle = time.Duration(g.IdleNs)
	if g.FirstNs > 0 {
		c.held = timeline.Span{Stage: timeline.VFDriver, Begin: time.Unix(0, g.FirstNs),
			End: time.Unix(0, g.OpenedNs)}
		c.Gate.HeldMs = milliseconds(c.held.End.Sub(c.held.Begin))
	}
}

// Attribute fills in the fields that follow from the begin, the end and the spans.
func (c *Record) Attribute() {
	if c.End.Before(c.Begin) {
		c.End = c.Begin // the clock was set back between the observations of two processes
	}
	c.EndToEnd = milliseconds(c.End.Sub(c.Begin))
	shares := timeline.Attribute(c.Spans, c.Begin, c.End)
	c.Coverage = timeline.Coverage(shares, c.Begin, c.End)
	c.Stages = make(map[timeline.Stage]float64, len(shares))
	for stage, share := range shares {
		c.Stages[stage] = milliseconds(share)
	}
	alone := milliseconds(
		timeline.Alone(timeline.VFDriver, c.Spans, c.held, c.Begin, c.End) + c.idle)
	c.VFAlone = &alone
}

func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}
