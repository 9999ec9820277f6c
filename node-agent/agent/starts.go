package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// keepStarts bounds how many ended cold starts are remembered: a burst of 200, and some before it.
const keepStarts = 256

// starts holds the node's cold starts, for readers of the live page. A start writes its times to
// its Timeline, with or without readers. It is rendered only when a reader asks, and rendering
// delays no start.
type starts struct {
	mu    sync.Mutex
	begun uint64
	ended uint64
	now   []*coldStart // under way, by number
	past  []*coldStart // ended, in that order; not changed any more
}

// A coldStart is over when the sandbox has answered the call that it was started for, or, without
// such a call, when it is ready.
type coldStart struct {
	timeline.Timeline
	all    *starts
	number uint64
	id     string
	call   *api.Call
	asked  time.Time
	boots  bool                   // it is of a sandbox, not of a function that a stem cell gets
	vf     atomic.Pointer[string] // once ready

	isOver     atomic.Bool
	end        time.Time // these are set when it is over
	state, why string
}

func (s *starts) begin(id string, call *api.Call) *coldStart {
	c := &coldStart{all: s, id: id, call: call, asked: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	c.number = s.begun
	s.now = append(s.now, c)
	return c
}

// ready takes in that the sandbox can take calls.
func (c *coldStart) ready(vf string) {
	c.vf.Store(&vf)
	if c.call == nil {
		c.over("ready", "")
	}
}

// badInit is why a start came to nothing whose runtime refused its function.
func badInit(code int) error { return fmt.Errorf("its /init answered HTTP %d", code) }

// awaitCall leaves a start, now ready, to the call that it is for.
func (a *Agent) awaitCall(id string, c *coldStart) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.sandboxes[id]; e == nil {
		c.failed(errEnded)
	} else if c.call != nil {
		e.cold = c
	}
}

var errEnded = errors.New("it ended before it had answered")

// run records the begin of the run that the start was for, and returns a function that records its
// end. A run in a warm sandbox has no start, and c is nil.
func (c *coldStart) run() (answered func(error)) {
	if c == nil {
		return func(error) {}
	}
	end := c.Begin(timeline.FirstByte)
	return func(err error) {
		end()
		if err != nil {
			c.failed(err)
		}
		c.over("answered", "")
	}
}

// failed takes in that there is no sandbox.
func (c *coldStart) failed(err error) {
	state := "failed"
	var refused *startup.Refused
	if errors.As(err, &refused) {
		state = "refused"
	}
	var image *oci.Refusal
	if errors.As(err, &image) { // its caller sees the page
		c.over(state, image.Terse())
		return
	}
	c.over(state, err.Error())
}

// over ends a start; only the first call counts.
func (c *coldStart) over(state, why string) {
	if c.isOver.Swap(true) {
		return
	}
	c.end, c.state, c.why = time.Now(), state, why
	s := c.all
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = slices.DeleteFunc(s.now, func(other *coldStart) bool { return other == c })
	if s.ended++; len(s.past) == keepStarts {
		s.past[0] = nil // the slice's array must not keep it
		s.past = s.past[1:]
	}
	s.past = append(s.past, c)
}

// tell renders the start as it is now. If it ends while being rendered, the next Starts shows that.
func (c *coldStart) tell(ended bool) *api.ColdStart {
	begin := c.asked.Add(-time.Duration(c.call.GetWaitedNs()))
	told := &api.ColdStart{Number: c.number, Id: c.id, Call: c.call, State: "starting",
		BeginNs: begin.UnixNano()}
	if vf := c.vf.Load(); vf != nil {
		told.Vf = *vf
	}
	if begin.Before(c.asked) {
		told.Spans = spans([]timeline.Span{{Stage: timeline.Queue, Begin: begin, End: c.asked}})
	}
	told.Spans = append(told.Spans, spans(c.Progress())...)
	if !ended {
		return told
	}
	told.State, told.Why, told.EndNs = c.state, c.why, told.BeginNs+int64(c.end.Sub(begin))
	for _, span := range told.Spans {
		if span.EndNs == 0 { // it was cut short
			span.EndNs = told.EndNs
		}
	}
	return told
}

// Starts implements api.NodeServer.
func (a *Agent) Starts(_ context.Context, req *api.StartsRequest) (*api.StartsReply, error) {
	s := &a.starts
	s.mu.Lock()
	ended, now := s.ended, slices.Clone(s.now)
	fresh := len(s.past)
	if req.After <= ended { // else it is of a former agent, whose starts went with it
		fresh = int(min(ended-req.After, uint64(fresh)))
	}
	past := slices.Clone(s.past[len(s.past)-fresh:])
	s.mu.Unlock()
	reply := &api.StartsReply{Ended: ended, Starts: make([]*api.ColdStart, 0, len(past)+len(now))}
	for _, c := range past {
		reply.Starts = append(reply.Starts, c.tell(true))
	}
	for _, c := range now {
		told := c.tell(false)
		a.mu.Lock()
		told.Why = a.waitsFor(a.sandboxes[c.id])
		a.mu.Unlock()
		reply.Starts = append(reply.Starts, told)
	}
	reply.NowNs = time.Now().UnixNano()
	return reply, nil
}
