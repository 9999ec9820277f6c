package timeline

import "time"

// A Moment is one of a cold start's at which the sandbox's memory is weighed.
type Moment string

// The moments, in their order.
const (
	FirstInstruction Moment = "first-instruction" // the guest is about to run
	BusMaster        Moment = "bus-master"        // its VF may use memory by itself
	FirstAnswer      Moment = "first-answer"      // the function has answered
)

// Moments lists all of them.
var Moments = []Moment{FirstInstruction, BusMaster, FirstAnswer}

// A Footprint says how much of a sandbox's memory there is at a moment, in bytes: allocated, and
// zeroed since the start began. Waited is how long its VF waited for the bus until all memory that
// it reaches was zeroed.
type Footprint struct {
	At       Moment        `json:"at"`
	Resident uint64        `json:"resident"`
	Zeroed   uint64        `json:"zeroed"`
	Waited   time.Duration `json:"waited_ns,omitempty"`
}

// Weigh records a footprint.
func (t *Timeline) Weigh(f Footprint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.footprints = append(t.footprints, f)
}

// Footprints returns the recorded footprints, in that order.
func (t *Timeline) Footprints() []Footprint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Footprint(nil), t.footprints...)
}
