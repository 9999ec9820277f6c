package image

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// How many layers a node works on, and how many bytes of them it holds.
const (
	streamMemory = 3 * oci.StreamBlocks * oci.BlockSize
	maxWorkedOn  = 16
	maxBegun     = 4  // layers of one namespace that have processes
	maxProcesses = 16 // of all; each namespace may have one, also beyond
)

// A turn may become another's after a window, above all if its registry sent less than slowTurn.
const (
	turnWindow = time.Second
	slowTurn   = 1 << 20
)

// turns says which layers are worked on. A turn has memory for blocks, and a place on a CPU. It
// ends with its layer, or while another namespace waits that has none: if its own namespace has
// more, or its registry is slow. Then the layer waits for the next turn, and what came of it stays.
type turns struct {
	mu     sync.Mutex
	now    func() time.Time
	memory int64 // that is free
	places int   // that are free
	all    []*turn
	begun  map[string]int // layers that have processes, by whose they are
	look   *time.Timer    // at what came; nil: nobody waits
}

// A turn is that of one layer. It implements oci.Turn.
type turn struct {
	*turns
	whose  string   // a namespace that pulls from one registry counts for itself
	pull   *pulling // of the image; nil: nobody asks how long it waited
	size   int64    // of the layer
	memory int64
	next   func(context.Context) error // waits until the next block may be asked for

	begun  bool // it has been taken before
	taken  bool
	ready  chan struct{} // closed when it is taken
	over   context.CancelCauseFunc
	since  time.Time     // since when its registry is waited for; zero: it is not
	waited time.Duration // for its registry, in this window
	came   int64         // in this window
	behind bool          // what came in this turn had come before
}

func newTurns() *turns {
	return &turns{now: time.Now, memory: streamMemory, begun: map[string]int{},
		places: min(runtime.NumCPU()+1, maxWorkedOn)}
}

// whose returns for whom the turns of an image's layers count.
func whose(image *oci.Image) string { return image.Namespace + " " + image.Registry() }

// Take implements oci.Turn.
func (t *turn) Take(ctx context.Context) (context.Context, func(), error) {
	within, over := context.WithCancelCause(ctx)
	asked := time.Now()
	t.mu.Lock()
	t.ready, t.over = make(chan struct{}), over
	t.since, t.waited, t.came, t.behind = time.Time{}, 0, 0, false
	t.all = append(t.all, t)
	t.grant()
	t.mu.Unlock()
	leave := func() { over(nil); t.leave() }
	select {
	case <-t.ready:
		if t.pull != nil {
			t.pull.hasTurn(time.Since(asked))
		}
		return within, leave, nil
	case <-ctx.Done():
		leave()
		return nil, nil, context.Cause(ctx)
	}
}

// Next implements oci.Turn.
func (t *turn) Next(ctx context.Context) error { return t.next(ctx) }

// Waits implements oci.Turn.
func (t *turn) Waits() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		t.since = t.now()
	}
}

// Came implements oci.Turn.
func (t *turn) Came(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waited += t.now().Sub(t.since)
	t.since = time.Time{}
	t.came += int64(bytes)
	t.behind = t.behind && bytes == 0
}

// Again implements oci.Turn.
func (t *turn) Again(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.came += int64(bytes)
	t.behind = true
}

func (t *turn) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(t.all, func(o *turn) bool { return o == t })
	if t.taken {
		t.taken = false
		t.turns.memory += t.memory
		t.places++
	}
	t.grant()
}

// end forgets a layer, which needs no more turns.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun {
		return
	}
	t.begun = false
	if t.turns.begun[t.whose]--; t.turns.begun[t.whose] == 0 {
		delete(t.turns.begun, t.whose)
	}
	t.grant()
}

// grant gives the turns that there are. As long as somebody waits, it is looked what comes.
func (s *turns) grant() {
	for {
		next := s.following()
		switch {
		case next == nil:
			return
		case s.places == 0 || s.memory < next.memory:
			if s.look == nil {
				s.measured(nil)
				s.look = time.AfterFunc(turnWindow, s.lookAgain)
			}
			return
		}
		s.places--
		s.memory -= next.memory
		next.taken = true
		if !next.begun {
			next.begun = true
			s.begun[next.whose]++
		}
		close(next.ready)
	}
}

func (s *turns) lookAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look = nil
	next := s.following()
	least := s.measured(next)
	if next == nil {
		return
	}
	if least != nil {
		least.over(oci.ErrOver)
	}
	s.look = time.AfterFunc(turnWindow, s.lookAgain)
}

// counts returns how many turns each namespace has.
func (s *turns) counts() map[string]int {
	has := map[string]int{}
	for _, t := range s.all {
		if t.taken {
			has[t.whose]++
		}
	}
	return has
}

// following returns whose turn is next: of the namespace that has the fewest, a layer that has
// begun, or else the largest.
func (s *turns) following() (next *turn) {
	has := s.counts()
	for _, t := range s.all {
		if !t.taken && (t.begun || s.mayBegin(t.whose)) && (next == nil || before(t, next, has)) {
			next = t
		}
	}
	return next
}

// mayBegin reports whether a layer of the namespace may have a process: all are one user's, who may
// have so many threads.
func (s *turns) mayBegin(whose string) bool {
	all := 0
	for _, n := range s.begun {
		all += n
	}
	has := s.begun[whose]
	return has == 0 || has < maxBegun && all < maxProcesses
}

func before(a, b *turn, has map[string]int) bool {
	if mine, other := has[a.whose], has[b.whose]; mine != other {
		return mine < other
	}
	if a.begun != b.begun {
		return a.begun
	}
	return a.size > b.size
}

// measured returns the turn that brought least, of those that are to be next's: none where nobody
// is next. A new window begins.
func (s *turns) measured(next *turn) (least *turn) {
	now, has := s.now(), s.counts()
	for _, t := range s.all {
		if !t.taken {
			continue
		}
		if !t.since.IsZero() {
			t.waited += now.Sub(t.since)
			t.since = now
		}
		if next != nil && yields(next, t, has) && (least == nil || t.came < least.came) {
			least = t
		}
	}
	for _, t := range s.all {
		t.waited, t.came = 0, 0
	}
	return least
}

// yields reports whether a turn is to be another's. One of many is, for a namespace that has none,
// unless it would end before anything new came. One that waited for its registry nearly all of the
// time, and got little, is for a namespace that has none, or two less.
func yields(next, t *turn, has map[string]int) bool {
	fetches := t.waited > 0 || t.came > 0
	if next.whose == t.whose || !fetches {
		return false
	}
	mine, others := has[next.whose], has[t.whose]
	slow := t.waited >= turnWindow*9/10 && t.came < slowTurn
	return mine == 0 && (slow || others > 1 && !t.behind) || slow && others-mine > 1
}
