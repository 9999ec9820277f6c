package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// keepStarts is how many cold starts are remembered that have ended: a burst of 200, and what was before it.
const keepStarts = 256

// starts are the node's cold starts, for whoever looks. A start leaves its times in its Timeline, looked at or not.
type starts struct {
	mu    sync.Mutex
	begun uint64
	ended uint64
	now   []*coldStart     // under way, by number
	past  []*api.ColdStart // ended, in that order; not changed any more
}

// A coldStart is over when the sandbox has answered the call that it was started for; where there is none, when it is ready.
type coldStart struct {
	timeline.Timeline
	all    *starts
	number uint64
	id     string
	call   *api.Call
	asked  time.Time
	vf     string // guarded by all.mu, like isOver
	isOver bool
}

func (s *starts) begin(id string, call *api.Call) *coldStart {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	c := &coldStart{all: s, number: s.begun, id: id, call: call, asked: time.Now()}
	s.now = append(s.now, c)
	return c
}

// ready takes in that the sandbox can take calls.
func (c *coldStart) ready(vf string) {
	c.all.mu.Lock()
	c.vf = vf
	c.all.mu.Unlock()
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

// run begins the run that the start was for, and returns what takes in its end. Of a run in a sandbox that is warm there is no start.
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
	c.over(state, err.Error())
}

// over ends a start; only the first call counts.
func (c *coldStart) over(state, why string) {
	s := c.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.isOver {
		return
	}
	c.isOver = true
	s.now = slices.DeleteFunc(s.now, func(other *coldStart) bool { return other == c })
	told := c.tell()
	told.State, told.Why, told.EndNs = state, why, time.Now().UnixNano()
	for _, span := range told.Spans {
		if span.EndNs == 0 { // it was cut short
			span.EndNs = told.EndNs
		}
	}
	if s.ended++; len(s.past) == keepStarts {
		s.past = s.past[1:] // append moves what is left when it has come to the end of the array
	}
	s.past = append(s.past, told)
}

// tell is the start as it is now; the caller holds the lock.
func (c *coldStart) tell() *api.ColdStart {
	begin := c.asked.Add(-time.Duration(c.call.GetWaitedNs()))
	told := &api.ColdStart{Number: c.number, Id: c.id, Vf: c.vf, Call: c.call, State: "starting", BeginNs: begin.UnixNano()}
	if begin.Before(c.asked) {
		told.Spans = spans([]timeline.Span{{Stage: timeline.Queue, Begin: begin, End: c.asked}})
	}
	told.Spans = append(told.Spans, spans(c.Progress())...)
	return told
}

// Starts implements api.NodeServer.
func (a *Agent) Starts(_ context.Context, req *api.StartsRequest) (*api.StartsReply, error) {
	s := &a.starts
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := len(s.past)
	if req.After <= s.ended { // else it is of a former agent, whose starts went with it
		fresh = int(min(s.ended-req.After, uint64(fresh)))
	}
	reply := &api.StartsReply{Ended: s.ended, NowNs: time.Now().UnixNano(), Starts: slices.Clone(s.past[len(s.past)-fresh:])}
	for _, c := range s.now {
		reply.Starts = append(reply.Starts, c.tell())
	}
	return reply, nil
}
