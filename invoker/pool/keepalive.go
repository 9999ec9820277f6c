package pool

import (
	"math"
	"time"
)

// A Policy says how long a sandbox is kept once it idles, from how long its function has idled
// before. It is a value; what it learns from is kept beside it, in Idles.
type Policy interface {
	Window(h *Idles) Window
	// Remembers returns how long the Idles of a function that nobody calls are worth keeping; 0
	// where the policy learns nothing.
	Remembers() time.Duration
}

// A Window is when a function that just ended should have a sandbox: from PreWarm after that end,
// for KeepAlive. With a PreWarm of 0 the sandbox it has is kept; else that one ends, and another is
// started when PreWarm is over.
type Window struct{ PreWarm, KeepAlive time.Duration }

// Fixed keeps every sandbox for the same time.
type Fixed time.Duration

func (f Fixed) Window(*Idles) Window   { return Window{KeepAlive: time.Duration(f)} }
func (Fixed) Remembers() time.Duration { return 0 }

// Histogram is the policy of "Serverless in the Wild" (Shahrad et al., USENIX ATC 2020): idle times
// are counted by the minute, up to four hours. A sandbox is there from before the 5th percentile of
// them until after the 99th, each with a margin of a tenth. Where the counts say nothing — too few,
// spread evenly, or most of them beyond four hours — Otherwise is for how long a sandbox is kept.
type Histogram struct{ Otherwise time.Duration }

const (
	bins     = 240
	binWidth = time.Minute
	early    = 0.05
	late     = 0.99
	margin   = 0.1
	fewest   = 5 // idle times that say anything
	leastCV  = 2 // coefficient of variation of the bins' counts, below which they look even
)

func (Histogram) Remembers() time.Duration { return bins * binWidth }

func (p Histogram) Window(h *Idles) Window {
	if !h.representative() {
		return Window{KeepAlive: p.Otherwise}
	}
	begin := time.Duration(float64(h.percentile(early)) * (1 - margin) * float64(binWidth))
	end := time.Duration(float64(h.percentile(late)+1) * (1 + margin) * float64(binWidth))
	if begin < binWidth {
		begin = 0
	}
	return Window{PreWarm: begin, KeepAlive: end - begin}
}

// Idles are the idle times of one function: from the end of its last run to its next call.
type Idles struct {
	counts  [bins]uint16
	within  int // the sum of counts
	beyond  int // longer ones
	squares int // the sum of the counts' squares
}

// add counts an idle time. When a count is full all are halved, so that what is new counts for
// more.
func (h *Idles) add(idle time.Duration) {
	bin := int(idle / binWidth)
	if bin >= bins {
		h.beyond++
		return
	}
	if h.counts[bin] == math.MaxUint16 {
		h.halve()
	}
	h.squares += 2*int(h.counts[bin]) + 1
	h.counts[bin]++
	h.within++
}

func (h *Idles) halve() {
	h.within, h.squares, h.beyond = 0, 0, h.beyond/2
	for i := range h.counts {
		h.counts[i] /= 2
		h.within += int(h.counts[i])
		h.squares += int(h.counts[i]) * int(h.counts[i])
	}
}

func (h *Idles) representative() bool {
	if h.within < fewest || h.beyond > h.within {
		return false
	}
	mean := float64(h.within) / bins
	variance := float64(h.squares)/bins - mean*mean
	return math.Sqrt(variance)/mean >= leastCV
}

// percentile is the first bin by which that share of the idle times is over.
func (h *Idles) percentile(share float64) int {
	seen, want := 0, share*float64(h.within)
	for i, n := range h.counts {
		if seen += int(n); float64(seen) >= want {
			return i
		}
	}
	return bins - 1
}
