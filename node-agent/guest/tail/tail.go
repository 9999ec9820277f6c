// Package tail keeps the last lines that a runtime wrote, for everybody who wants to read them.
//
// A Log has one writer, which waits for nobody. A watcher is called with every line as it comes. A
// Reader reads at its own pace; where it falls behind what is kept, it learns how many lines it
// has missed.
package tail

import (
	"bufio"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const (
	keep     = 64 << 10 // bytes of a Log, for readers that come late or fall behind
	lineCost = 64       // bytes of a line beside its text: without it, empty lines would be free
)

// A Log holds the last lines that one runtime wrote.
type Log struct {
	mu       sync.Mutex
	lines    []wire.LogLine
	first    uint64 // how many lines came before lines[0]
	cost     int
	more     chan struct{} // closed when a line comes; nil: nobody waits for one
	done     chan struct{}
	ended    bool
	watchers []func(wire.LogLine)
}

// New returns a Log without lines.
func New() *Log { return &Log{done: make(chan struct{})} }

// Add adds a line, unless the log has ended.
func (l *Log) Add(line wire.LogLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.lines = append(l.lines, line)
	l.cost += lineCost + len(line.Text)
	for l.cost > keep && len(l.lines) > 1 {
		l.cost -= lineCost + len(l.lines[0].Text)
		l.lines[0] = wire.LogLine{} // the array lives on, the text need not
		l.lines = l.lines[1:]
		l.first++
	}
	for _, each := range l.watchers {
		each(line)
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// Copy adds the lines of a stream until it ends. A line longer than wire.MaxText comes in pieces.
func (l *Log) Copy(stream string, from io.Reader) {
	for lines := bufio.NewReaderSize(from, wire.MaxText); ; {
		text, _, err := lines.ReadLine()
		if err != nil {
			return
		}
		l.Add(wire.LogLine{Time: time.Now(), Stream: stream, Text: string(text)})
	}
}

// End says that no more lines come. It may be called twice.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.done)
	}
}

// Done is closed when no more lines come.
func (l *Log) Done() <-chan struct{} { return l.done }

// Watch calls each with every line that is kept and every line that comes, in their order. The
// writer waits for each, so it must not block.
func (l *Log) Watch(each func(wire.LogLine)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		each(line)
	}
	l.watchers = append(l.watchers, each)
}

// Lines returns the lines that are kept.
func (l *Log) Lines() []wire.LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// Read returns a Reader that begins with the oldest line that is kept.
func (l *Log) Read() *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Reader{log: l, next: l.first}
}

// A Reader reads a Log. It is for one goroutine.
type Reader struct {
	log  *Log
	next uint64
}

// Next returns the next line and how many lines before it were dropped unread. It waits for a line
// until ctx ends; after the last one the error is io.EOF.
func (r *Reader) Next(ctx context.Context) (line wire.LogLine, missed uint64, err error) {
	for {
		line, missed, more, ok := r.take()
		if ok {
			return line, missed, nil
		}
		if more == nil {
			return line, 0, io.EOF
		}
		select {
		case <-more:
		case <-r.log.done:
		case <-ctx.Done():
			return line, 0, context.Cause(ctx)
		}
	}
}

// take returns the next line if there is one, or else what to wait for; nil: nothing comes.
func (r *Reader) take() (line wire.LogLine, missed uint64, more <-chan struct{}, ok bool) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.next < l.first {
		missed = l.first - r.next
		r.next = l.first
	}
	if i := r.next - l.first; i < uint64(len(l.lines)) {
		r.next++
		return l.lines[i], missed, nil, true
	}
	if l.ended {
		return line, 0, nil, false
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return line, 0, l.more, false
}
