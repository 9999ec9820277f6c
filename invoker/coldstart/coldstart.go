// Package coldstart holds the timeline of a start that a call had to wait for, whatever API the call
// came by.
package coldstart

import (
	"math"
	"slices"
	"time"

	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A Record is the timeline of a start. It begins when the request was accepted and ends with the last
// byte of the answer leaving the sandbox; where none came, with the last thing known.
type Record struct {
	Sandbox  string                     `json:"sandbox"`
	Driver   string                     `json:"driver"`            // "sim": the times are simulated
	NetPath  string                     `json:"netpath,omitempty"` // vf or none
	FastIOV  string                     `json:"fastiov,omitempty"` // the set of FastIOV's optimisations
	VF       string                     `json:"vf,omitempty"`
	MAC      string                     `json:"mac,omitempty"`
	Address  string                     `json:"address,omitempty"`
	Answered bool                       `json:"answered"`
	Begin    time.Time                  `json:"begin"`
	End      time.Time                  `json:"end"`
	EndToEnd float64                    `json:"endToEndMs"`
	Coverage float64                    `json:"coverage"`
	Stages   map[timeline.Stage]float64 `json:"stagesMs"` // each instant given to the innermost stage; sums to EndToEnd
	Spans    []timeline.Span            `json:"spans"`
	Memory   []timeline.Footprint       `json:"memory,omitempty"` // how much of the sandbox's there was, and when
}

// Of joins the invoker's own stages with the node's: queue until the node was asked, and the run as the first byte.
func Of(accepted time.Time, result pool.Result, end time.Time) *Record {
	start := result.Start
	var tl timeline.Timeline
	begin := accepted.Round(0) // by the wall's clock, as all that the node says; what lies between, not
	queued := result.Placed.Sub(accepted)
	tl.Add(timeline.Span{Stage: timeline.Queue, Begin: begin, End: begin.Add(queued)})
	for _, s := range start.Spans {
		tl.Add(timeline.Span{
			Stage: timeline.Stage(s.Stage), Begin: time.Unix(0, s.BeginNs), End: time.Unix(0, s.EndNs), Error: time.Duration(s.ErrorNs),
		})
	}
	if run := result.Run; run != nil {
		tl.Add(timeline.Span{Stage: timeline.FirstByte, Begin: time.Unix(0, run.BeginNs), End: time.Unix(0, run.EndNs)})
	}
	cold := &Record{
		Sandbox: result.Sandbox, Driver: start.Driver, NetPath: start.NetPath, FastIOV: start.Fastiov,
		VF: start.Vf, MAC: start.Mac, Address: start.Address,
		Answered: result.Run != nil, Begin: begin, End: end, Spans: tl.Spans(),
	}
	for _, f := range append(slices.Clip(start.Memory), result.Run.GetMemory()) {
		if f != nil {
			cold.Memory = append(cold.Memory, timeline.Footprint{
				At: timeline.Moment(f.At), Resident: f.Resident, Zeroed: f.Zeroed, Waited: time.Duration(f.WaitedNs),
			})
		}
	}
	cold.Attribute()
	return cold
}

// Attribute fills in what follows from the begin, the end and the spans.
func (c *Record) Attribute() {
	if c.End.Before(c.Begin) {
		c.End = c.Begin // the clock was set back between what two processes saw
	}
	c.EndToEnd = milliseconds(c.End.Sub(c.Begin))
	shares := timeline.Attribute(c.Spans, c.Begin, c.End)
	c.Coverage = timeline.Coverage(shares, c.Begin, c.End)
	c.Stages = make(map[timeline.Stage]float64, len(shares))
	for stage, share := range shares {
		c.Stages[stage] = milliseconds(share)
	}
}

func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}
