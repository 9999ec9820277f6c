package openwhisk

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// LogLimit bounds the output of a runtime that is kept between two takes, both streams together.
const LogLimit = 1 << 20

// lineCost counts for each kept line beside its text: without it, empty lines would be free.
const lineCost = 64

// logs keeps what a runtime wrote until it is taken, activation by activation. An activation ends
// on a stream where its sentinel stands. What is over the limit is dropped and a marker left; a
// sentinel over the limit is kept if it is the first of its stream, so that a flood cannot make an
// activation endless.
type logs struct {
	ended  <-chan struct{} // closed when the runtime writes no more
	silent *atomic.Bool    // its image's: a runtime was waited for in vain

	mu        sync.Mutex
	entries   []entry
	cost      int
	cut       bool          // the marker stands
	sentinels [2]int        // on stdout and stderr
	known     bool          // its runtime writes sentinels
	complete  chan struct{} // closed when both streams have a sentinel; nil: nobody waits for that
}

type entry struct {
	wire.LogLine
	stream   int
	sentinel bool
}

// add takes one line as it was heard. A sentinel counts wherever it stands in the line, because
// what the function wrote before may lack its newline.
func (l *logs) add(line wire.LogLine) {
	stream := 0
	if line.Stream == "stderr" {
		stream = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := line.Text; ; {
		before, after, found := strings.Cut(text, Sentinel)
		if before != "" || !found && text == line.Text {
			line := line
			line.Text = before
			l.keep(entry{LogLine: line, stream: stream})
		}
		if !found {
			return
		}
		l.end(stream)
		if text = after; text == "" {
			return
		}
	}
}

func (l *logs) keep(e entry) {
	cost := lineCost + len(e.Text)
	if l.cost+cost > LogLimit {
		if !l.cut {
			l.cut = true
			e.Text = fmt.Sprintf("Logs were truncated: the activation wrote more than %d bytes.",
				LogLimit)
			l.entries = append(l.entries, e)
		}
		return
	}
	l.cost += cost
	l.entries = append(l.entries, e)
}

func (l *logs) end(stream int) {
	if l.cost+lineCost > LogLimit && l.sentinels[stream] > 0 {
		return
	}
	l.cost += lineCost
	l.sentinels[stream]++
	l.entries = append(l.entries, entry{stream: stream, sentinel: true})
	if l.isComplete() && l.complete != nil {
		close(l.complete)
		l.complete = nil
	}
}

func (l *logs) isComplete() bool { return l.sentinels[0] > 0 && l.sentinels[1] > 0 }

// These bound the waits for a runtime that has never ended an activation on both streams.
// OpenWhisk's runtimes write their sentinels with the answer, which may come much earlier on a busy
// node. Others write none: for those the longer bound is met once, not by each sandbox of an image.
const (
	firstWithin = 10 * time.Second
	thenWithin  = time.Second
)

// OpenWhisk adds this line to logs whose sentinels did not come.
const incomplete = "There was an issue while collecting your logs. Data might be missing."

// take takes an activation's lines. Where it gives up waiting for their sentinels while the runtime
// may still write, a last line says so.
func (l *logs) take(ctx context.Context, until time.Time) []wire.LogLine {
	if l.await(ctx, until) {
		return l.cutOff()
	}
	lines := l.cutOff()
	select {
	case <-l.ended:
		return lines
	default:
		return append(lines, wire.LogLine{Time: time.Now(), Stream: "stderr", Text: incomplete})
	}
}

// await waits until both streams have a sentinel. It returns false where it gave up: it is until,
// or ctx has ended, the runtime writes no more, or it seems to write no sentinels.
func (l *logs) await(ctx context.Context, until time.Time) bool {
	complete, within := l.completion()
	if complete == nil {
		return true
	}
	var unheard <-chan time.Time
	if within > 0 {
		unheard = time.After(within)
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	for complete != nil {
		select {
		case <-complete:
		case <-l.ended:
			return false
		case <-ctx.Done():
			return false
		case <-unheard:
			l.silent.Store(true)
			return false
		}
		complete, _ = l.completion() // unless another call took it
	}
	return true
}

// completion returns what is closed when both streams have a sentinel, nil where they have, and how
// long that is waited for, 0 without a bound.
func (l *logs) completion() (complete <-chan struct{}, within time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isComplete() {
		if !l.known {
			l.known = true
			l.silent.Store(false)
		}
		return nil, 0
	}
	if l.complete == nil {
		l.complete = make(chan struct{})
	}
	switch {
	case l.known:
		return l.complete, 0
	case l.silent.Load():
		return l.complete, thenWithin
	}
	return l.complete, firstWithin
}

// cutOff returns the lines that came before the first sentinel of their stream, in the order in
// which they came.
func (l *logs) cutOff() []wire.LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	var taken []wire.LogLine
	left := l.entries[:0]
	var over [len(l.sentinels)]bool
	l.cost, l.cut = 0, false
	for _, e := range l.entries {
		switch {
		case over[e.stream]:
			left = append(left, e)
			l.cost += lineCost + len(e.Text)
		case e.sentinel:
			over[e.stream] = true
			l.sentinels[e.stream]--
		default:
			taken = append(taken, e.LogLine)
		}
	}
	clear(l.entries[len(left):])
	l.entries = left
	return taken
}
