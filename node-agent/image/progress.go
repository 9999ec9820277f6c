package image

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// After repeatAfter a line is said again, with a new time.
const repeatAfter = 10 * time.Second

// A step tells what is being done to one image, with the time it has taken so far:
//
//	image  python:3  12s  unpacking 31 packages
type step struct {
	out   io.Writer
	name  string
	begin time.Time

	mu   sync.Mutex
	last string
	tick *time.Ticker
	stop chan struct{}
	done sync.WaitGroup
}

func newStep(out io.Writer, name string) *step {
	s := &step{out: out, name: name, begin: time.Now(), tick: time.NewTicker(repeatAfter),
		stop: make(chan struct{})}
	s.done.Go(func() {
		for {
			select {
			case <-s.tick.C:
				s.print("")
			case <-s.stop:
				return
			}
		}
	})
	return s
}

// say prints what is being done now.
func (s *step) say(format string, args ...any) { s.print(fmt.Sprintf(format, args...)) }

func (s *step) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != "" {
		s.last = text
		s.tick.Reset(repeatAfter)
	}
	if s.last != "" {
		elapsed := int(time.Since(s.begin).Seconds())
		fmt.Fprintf(s.out, "image  %s  %ds  %s\n", s.name, elapsed, s.last)
	}
}

// stepIn reads a line that a step printed.
func stepIn(line string) (name, text string, is bool) {
	fields := strings.SplitN(line, "  ", 4)
	if len(fields) < 4 || fields[0] != "image" {
		return "", "", false
	}
	return fields[1], fields[3], true
}

// end stops the repeating. It may run twice.
func (s *step) end() {
	s.mu.Lock()
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.mu.Unlock()
	s.tick.Stop()
	s.done.Wait()
}
