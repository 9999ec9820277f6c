package kprobe

import "github.com/fastiov/fastiov/node-agent/api/timeline"

// Spans returns the stages that events make up: mappings are 1-dma-ram, openings 4-vfio-dev. The
// last mapping of an image region's size is 3-dma-image, since the region lies behind the RAM;
// without a region that is mapped the size is 0. A reset outside an opening is also 4-vfio-dev: the
// VMM resets its VF once more when it resets its machine, and that is part of making the VF ready.
func Spans(events []Event, region uint64) []timeline.Span {
	var spans []timeline.Span
	image := -1
	for n, e := range events {
		if e.Kind == Mapping && region > 0 && e.Bytes == region {
			image = n
		}
	}
	for n, e := range events {
		stage := timeline.VFIODev
		switch {
		case n == image:
			stage = timeline.DMAImage
		case e.Kind == Mapping:
			stage = timeline.DMARAM
		}
		if e.Kind != Resetting || !opening(events, e) {
			spans = append(spans, timeline.Span{Stage: stage, Begin: e.Begin, End: e.End})
		}
	}
	return spans
}

func opening(events []Event, reset Event) bool {
	for _, e := range events {
		if e.Kind == Opening && !e.Begin.After(reset.Begin) && !e.End.Before(reset.End) {
			return true
		}
	}
	return false
}
