package testbed

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// steps writes what is being done to w, each line with the time since the beginning, and repeats it
// while a step lasts.
type steps struct {
	mu    sync.Mutex
	w     io.Writer
	what  string
	began time.Time
	again *time.Timer
}

const repeatAfter = 10 * time.Second

func newSteps(w io.Writer, what string) *steps {
	if w == nil {
		w = io.Discard
	}
	return &steps{w: w, what: what, began: time.Now()}
}

func (s *steps) step(format string, a ...any) {
	s.done()
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, a...)
	s.print(line)
	var t *time.Timer
	t = time.AfterFunc(repeatAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.again == t {
			s.print(line)
			t.Reset(repeatAfter)
		}
	})
	s.again = t
}

func (s *steps) print(line string) {
	fmt.Fprintf(s.w, "%s  %.1fs  %s\n", s.what, time.Since(s.began).Seconds(), line)
}

func (s *steps) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again != nil {
		s.again.Stop()
		s.again = nil
	}
}
