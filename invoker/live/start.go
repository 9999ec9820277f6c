package live

import (
	"math"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A start is a cold start as the page shows it: one stage after the other, and the one that it is in.
type start struct {
	number  uint64 // among those of all nodes
	told    *api.ColdStart
	begin   float64 // ms since 1970, by this machine's clock
	pieces  []piece // that are over
	current int     // place of the stage that it is in; -1: it has ended
}

// A piece is a stage, by its place in timeline.Order, and how long it took.
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

// newStart cuts what a node told at now into pieces. A stage that is not known here counts as one that none claims.
func newStart(node int, told *api.ColdStart, now, ahead int64) *start {
	s := &start{number: uint64(node)<<40 | told.Number, told: told, begin: float64((told.BeginNs+ahead)/1000) / 1000, current: -1}
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
		spans[i] = timeline.Span{Stage: timeline.Stage(span.Stage), Begin: time.Unix(0, span.BeginNs), End: time.Unix(0, until)}
	}
	segments := timeline.Segments(spans, time.Unix(0, told.BeginNs), time.Unix(0, end))
	if told.EndNs == 0 { // the last one goes on
		s.current = places[timeline.Unattributed]
		if last := len(segments) - 1; last >= 0 {
			s.current = placeOf(segments[last].Stage)
			segments = segments[:last]
		}
	}
	for _, segment := range segments {
		s.pieces = append(s.pieces, piece{placeOf(segment.Stage), milliseconds(segment.End.Sub(segment.Begin))})
	}
	return s
}

func placeOf(stage timeline.Stage) int {
	if place, known := places[stage]; known {
		return place
	}
	return places[timeline.Unattributed]
}

// milliseconds are told to a thousandth.
func milliseconds(d time.Duration) float64 { return math.Round(float64(d)/1000) / 1000 }
