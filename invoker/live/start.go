package live

import (
	"math"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A start is a cold start as the page shows it: its finished stages one after the other, and the
// present one.
type start struct {
	number  uint64 // unique among the starts of all nodes
	told    *api.ColdStart
	begin   float64 // ms since 1970, by this machine's clock
	pieces  []piece // finished stages
	current int     // index of the present stage; -1: the start has ended
}

// A piece is a stage, by its index in timeline.Order, and its duration.
type piece struct {
	stage int
	ms    float64
}

var places = func() map[timeline.Stage]int {
	m := map[timeline.Stage]int{}
	for i, stage := range timeline.Order {
		m[stage] = i
	}
	return m
}()

// newStart cuts what a node reported at now into pieces. Time in an unknown stage counts as
// unattributed.
func newStart(node int, told *api.ColdStart, now, ahead int64) *start {
	s := &start{
		number: uint64(node)<<40 | told.Number, told: told,
		begin: float64((told.BeginNs+ahead)/1000) / 1000, current: -1,
	}
	end := told.EndNs
	if end == 0 {
		end = now
	}
	spans := make([]timeline.Span, len(told.Spans))
	for i, span := range told.Spans {
		until := span.EndNs
		if until == 0 {
			until = end
		}
		spans[i] = timeline.Span{
			Stage: timeline.Stage(span.Stage), Begin: time.Unix(0, span.BeginNs),
			End: time.Unix(0, until),
		}
	}
	segments := timeline.Segments(spans, time.Unix(0, told.BeginNs), time.Unix(0, end))
	if told.EndNs == 0 { // the last stage goes on
		s.current = places[timeline.Unattributed]
		if last := len(segments) - 1; last >= 0 {
			s.current = placeOf(segments[last].Stage)
			segments = segments[:last]
		}
	}
	for _, segment := range segments {
		s.pieces = append(s.pieces,
			piece{placeOf(segment.Stage), milliseconds(segment.End.Sub(segment.Begin))})
	}
	return s
}

func placeOf(stage timeline.Stage) int {
	if place, known := places[stage]; known {
		return place
	}
	return places[timeline.Unattributed]
}

// milliseconds returns d in milliseconds, rounded to a thousandth.
func milliseconds(d time.Duration) float64 { return math.Round(float64(d)/1000) / 1000 }
