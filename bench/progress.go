package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// A progress shows how far a burst is: on a terminal by a growing bar, elsewhere by a line for each
// round.
type progress struct {
	out   io.Writer
	total int
	begin time.Time
	bar   bool

	mu   sync.Mutex
	done int // answered, and not
	bad  int
	end  chan struct{}
	over sync.WaitGroup
}

func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, total: total, begin: time.Now(), end: make(chan struct{})}
	if _, p.bar = terminal(out); p.bar {
		p.over.Go(p.draw)
	}
	return p
}

// terminal reports whether w is a terminal, and returns its columns.
func terminal(w io.Writer) (columns int, is bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 60 {
		columns = 80
	}
	return columns, true
}

func (p *progress) show(answered, bad int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.bad = answered, bad
}

// draw draws the bar ten times a second in a goroutine, so that the terminal does not slow the
// burst.
func (p *progress) draw() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		p.mu.Lock()
		line := barOf(p.done, p.bad, p.total)
		fmt.Fprintf(p.out, "\r\x1b[Kburst  %s  %.1f s", line, time.Since(p.begin).Seconds())
		p.mu.Unlock()
		select {
		case <-tick.C:
		case <-p.end:
			fmt.Fprint(p.out, "\r\x1b[K")
			return
		}
	}
}

// barOf returns the bar with its figures.
func barOf(answered, bad, total int) string {
	const wide = 40
	full, broken := wide*answered/total, wide*bad/total
	line := strings.Repeat("█", full) + strings.Repeat("▒", broken) +
		strings.Repeat("·", wide-full-broken)
	line += fmt.Sprintf("  %d/%d answered", answered, total)
	if bad > 0 {
		line += fmt.Sprintf(", %d not", bad)
	}
	return line
}

// round prints how a round ended.
func (p *progress) round(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "%s  %s\n", line, time.Since(p.begin).Round(time.Second))
}

func (p *progress) stop() {
	close(p.end)
	p.over.Wait()
}
