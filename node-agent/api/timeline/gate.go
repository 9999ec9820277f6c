package timeline

import (
	"slices"
	"time"
)

// A Gate tells how a sandbox's NIC came up while its program ran: what the program sent was held
// until then.
type Gate struct {
	Open    bool // the NIC is up; else the rest is not known yet
	Held    int  // packets
	Dropped int  // packets that found no room, or could not be sent again

	// For how long nothing ran in the sandbox while its NIC came up, before it was ready and before
	// the first packet was held. It is known also before the NIC is up.
	Idle time.Duration

	First, Opened time.Time // when the first was held (zero: none was), and all had been sent

	// What the start's own timeline is without: of the NIC's coming up, and at BusMaster.
	Spans  []Span
	Memory *Footprint
}

// Alone returns how long, between begin and end, stage was open and no other stage was, or held was
// open. What ran within another stage it does not see: see Gate.Idle.
func Alone(stage Stage, spans []Span, held Span, begin, end time.Time) (alone time.Duration) {
	cuts := []time.Time{begin, end, held.Begin, held.End}
	for _, s := range spans {
		cuts = append(cuts, s.Begin, s.End)
	}
	slices.SortFunc(cuts, time.Time.Compare)
	for i := 1; i < len(cuts); i++ {
		from, to := cuts[i-1], cuts[i]
		if from.Before(begin) || to.After(end) || !from.Before(to) {
			continue
		}
		if held.covers(from, to) || only(stage, spans, from, to) {
			alone += to.Sub(from)
		}
	}
	return alone
}

func only(stage Stage, spans []Span, from, to time.Time) (open bool) {
	for _, s := range spans {
		if s.covers(from, to) {
			if s.Stage != stage {
				return false
			}
			open = true
		}
	}
	return open
}

func (s Span) covers(from, to time.Time) bool { return !s.Begin.After(from) && !s.End.Before(to) }
