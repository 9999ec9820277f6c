// Package timeline records how a cold start spent its time.
//
// A Timeline is a set of spans, each a named stage with a begin and an end on the host's clock.
// Spans nest and overlap (the VMM opens the VF while it starts). Each instant is attributed to the
// innermost stage open at it, the one that began last, so that the stages add up to the whole. Time
// that no stage claims is Unattributed, a stage of its own.
package timeline

import (
	"slices"
	"sync"
	"time"
)

// Stage names one step of a cold start. The numbered ones keep the names of the FastIOV paper's
// Fig. 5 and Table 1.
type Stage string

const (
	Queue        Stage = "queue"       // accepted, waiting for a place
	Image        Stage = "image"       // finding or fetching the function's image
	CNI          Stage = "cni"         // the run directory, and an address or a port for the NIC
	Cgroup       Stage = "0-cgroup"    // making the sandbox's cgroup
	VMM          Stage = "vmm"         // the VMM's own start, up to the first guest instruction
	Runtime      Stage = "runtime"     // in the place of a VMM, the OCI runtime: create and start
	DMARAM       Stage = "1-dma-ram"   // mapping guest RAM for DMA
	Virtiofs     Stage = "2-virtiofs"  // starting the shared file system
	DMAImage     Stage = "3-dma-image" // mapping the image region for DMA
	VFIODev      Stage = "4-vfio-dev"  // opening the VF
	GuestBoot    Stage = "guest-boot"  // guest kernel, first instruction to init
	Agent        Stage = "agent"       // guest agent: configuration, root, runtime start
	VFDriver     Stage = "5-vf-driver" // VF driver probe and link up in the guest
	AppInit      Stage = "app-init"    // the runtime's /init
	FirstByte    Stage = "first-byte"  // the first /run
	Unattributed Stage = "unattributed"
)

// Order is the order in which stages are shown.
var Order = []Stage{Queue, Image, CNI, Cgroup, VMM, Runtime, DMARAM, Virtiofs, DMAImage, VFIODev,
	GuestBoot, Agent, VFDriver, AppInit, FirstByte, Unattributed}

// A Span is one stage's begin and end. If they were read on another clock, Error bounds how far
// both may be off.
type Span struct {
	Stage Stage         `json:"stage"`
	Begin time.Time     `json:"begin"`
	End   time.Time     `json:"end"`
	Error time.Duration `json:"error_ns,omitempty"`
}

// A Timeline collects the spans of one cold start. The zero value is ready to use, by any number of
// goroutines.
type Timeline struct {
	mu    sync.Mutex
	spans []Span
	open  []*Span // begun, not ended
	// Stages that Progress shows until their measured spans come, which is only once they are over.
	shown []Span

	footprints []Footprint
}

// Begin opens a stage now and returns the function that closes it; only its first call counts.
func (t *Timeline) Begin(stage Stage) (end func()) {
	span := &Span{Stage: stage, Begin: time.Now()}
	t.mu.Lock()
	t.open = append(t.open, span)
	t.mu.Unlock()
	return func() {
		now := time.Now()
		t.mu.Lock()
		defer t.mu.Unlock()
		if i := slices.Index(t.open, span); i >= 0 {
			t.open = slices.Delete(t.open, i, i+1)
			span.End = now
			t.spans = append(t.spans, *span)
		}
	}
}

// Add records finished spans. A span that ends before it begins was read on a clock that was off by
// more than its length: it is kept, empty.
func (t *Timeline) Add(spans ...Span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = slices.Grow(t.spans, len(spans))
	for _, s := range spans {
		if s.End.Before(s.Begin) {
			s.End = s.Begin
		}
		t.spans = append(t.spans, s)
	}
}

// Spans returns the recorded spans, by begin.
func (t *Timeline) Spans() []Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	spans := slices.Clone(t.spans)
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Begin.Compare(b.Begin) })
	return spans
}

// Show tells readers of Progress that a stage begins about now, and that the one shown before is
// over. An empty stage says that from now on measured spans are known. Show records nothing.
func (t *Timeline) Show(stage Stage) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if stage == "" {
		t.shown = nil
		return
	}
	if last := len(t.shown) - 1; last >= 0 {
		t.shown[last].End = now
	}
	t.shown = append(t.shown, Span{Stage: stage, Begin: now})
}

// Progress returns by begin the spans that Spans does, the open ones, which have no end, and the
// stages shown.
func (t *Timeline) Progress() []Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	spans := slices.Concat(t.spans, t.shown)
	for _, s := range t.open {
		spans = append(spans, *s)
	}
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Begin.Compare(b.Begin) })
	return spans
}

// Attribute shares the time between begin and end among the stages of spans: each instant to the
// innermost stage open at it. The result sums to end − begin exactly.
func Attribute(spans []Span, begin, end time.Time) map[Stage]time.Duration {
	shares := map[Stage]time.Duration{}
	for _, s := range Segments(spans, begin, end) {
		shares[s.Stage] += s.End.Sub(s.Begin)
	}
	return shares
}

// Segments cuts the time between begin and end into pieces without gap or overlap, each of the
// innermost stage open in it.
func Segments(spans []Span, begin, end time.Time) (segments []Span) {
	cuts := append(make([]time.Time, 0, 2+2*len(spans)), begin, end)
	for _, s := range spans {
		cuts = append(cuts, s.Begin, s.End)
	}
	slices.SortFunc(cuts, time.Time.Compare)
	for i := 1; i < len(cuts); i++ {
		from, to := cuts[i-1], cuts[i]
		if from.Before(begin) || to.After(end) || !from.Before(to) {
			continue
		}
		stage := innermost(spans, from, to)
		if last := len(segments) - 1; last >= 0 && segments[last].Stage == stage {
			segments[last].End = to
		} else {
			segments = append(segments, Span{Stage: stage, Begin: from, End: to})
		}
	}
	return segments
}

func innermost(spans []Span, from, to time.Time) Stage {
	stage, since := Unattributed, time.Time{}
	for _, s := range spans {
		if s.covers(from, to) && !s.Begin.Before(since) {
			stage, since = s.Stage, s.Begin
		}
	}
	return stage
}

// Coverage returns the part of the time from begin to end that shares gives to stages:
// 1 − unattributed ÷ (end − begin).
func Coverage(shares map[Stage]time.Duration, begin, end time.Time) float64 {
	if !begin.Before(end) {
		return 1
	}
	return 1 - float64(shares[Unattributed])/float64(end.Sub(begin))
}
