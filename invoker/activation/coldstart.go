package activation

import (
	"math"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A ColdStart is the timeline of the start that an activation had to wait for. It begins when the request was accepted and ends with
// the last byte of the answer leaving the sandbox; where none came, with the last thing known.
type ColdStart struct {
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

// Attribute fills in what follows from the begin, the end and the spans.
func (c *ColdStart) Attribute() {
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
