package guest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// LogLimit is how much of a runtime's output is kept between two takes, both streams together.
const LogLimit = 1 << 20

// lineCost is what a kept line costs beside its text: without it, empty lines would be free.
const lineCost = 64

var streams = [...]string{"stdout", "stderr"}

// logs keeps what a runtime wrote until it is taken, activation by activation. An activation ends on a stream where its sentinel stands. What
// is over the limit is dropped and a marker left; a sentinel over the limit is kept if it is the first of its stream, so that a flood
// cannot make an activation endless.
type logs struct {
	mu      sync.Mutex
	entries []entry
	cost    int
	cut     bool // the marker stands
	ended   [len(streams)]int
	known   bool          // its runtime writes sentinels
	changed chan struct{} // closed and replaced when a sentinel comes
}

type entry struct {
	sandbox.LogLine
	stream   int
	sentinel bool
}

func newLogs() *logs { return &logs{changed: make(chan struct{})} }

// add takes one line as it was heard. A sentinel counts wherever it stands in the line, because what the function wrote before may lack
// its newline.
func (l *logs) add(now time.Time, line wire.Log) error {
	stream := -1
	for i, name := range streams {
		if name == line.Stream {
			stream = i
		}
	}
	if stream < 0 || len(line.Text) > 3*wire.MaxText { // what replaces a byte that is not UTF-8 has three
		return fmt.Errorf("a log line of %d bytes on stream %.20q", len(line.Text), line.Stream)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := line.Text; ; {
		before, after, found := strings.Cut(rest, wire.Sentinel)
		if before != "" || !found && rest == line.Text {
			l.keep(entry{LogLine: sandbox.LogLine{Time: now, Stream: streams[stream], Text: before}, stream: stream})
		}
		if !found {
			return nil
		}
		l.end(stream)
		if rest = after; rest == "" {
			return nil
		}
	}
}

func (l *logs) keep(e entry) {
	cost := lineCost + len(e.Text)
	if l.cost+cost > LogLimit {
		if !l.cut {
			l.cut = true
			e.Text = fmt.Sprintf("Logs were truncated: the activation wrote more than %d bytes.", LogLimit)
			l.entries = append(l.entries, e)
		}
		return
	}
	l.cost += cost
	l.entries = append(l.entries, e)
}

func (l *logs) end(stream int) {
	if l.cost+lineCost > LogLimit && l.ended[stream] > 0 {
		return
	}
	l.cost += lineCost
	l.ended[stream]++
	l.entries = append(l.entries, entry{stream: stream, sentinel: true})
	close(l.changed)
	l.changed = make(chan struct{})
}

// sentinelsWithin is how long a runtime is waited for that has never ended an activation on both
// streams: OpenWhisk's runtimes write their sentinels with the answer, others write none.
const sentinelsWithin = time.Second

// incomplete is what OpenWhisk adds to logs whose sentinels did not come.
const incomplete = "There was an issue while collecting your logs. Data might be missing."

// await waits until both streams have a sentinel. It returns false where it gave up: ctx has ended, the
// guest is gone, or its runtime seems to write none.
func (l *logs) await(ctx context.Context, gone <-chan struct{}) bool {
	unheard := time.NewTimer(sentinelsWithin)
	defer unheard.Stop()
	for {
		l.mu.Lock()
		l.known = l.known || l.complete()
		complete, known, changed := l.complete(), l.known, l.changed
		l.mu.Unlock()
		if complete {
			return true
		}
		giveUp := unheard.C
		if known {
			giveUp = nil
		}
		select {
		case <-changed:
		case <-giveUp:
			return false
		case <-gone:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (l *logs) complete() bool { return l.ended[0] > 0 && l.ended[1] > 0 }

// cutOff takes, in the order heard, each stream's lines up to and without its first sentinel.
func (l *logs) cutOff() []sandbox.LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	var taken []sandbox.LogLine
	var left []entry
	var over [len(streams)]bool
	l.cost, l.cut = 0, false
	for _, e := range l.entries {
		switch {
		case over[e.stream]:
			left = append(left, e)
			l.cost += lineCost + len(e.Text)
		case e.sentinel:
			over[e.stream] = true
			l.ended[e.stream]--
		default:
			taken = append(taken, e.LogLine)
		}
	}
	l.entries = left
	return taken
}
