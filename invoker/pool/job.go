package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A Job is one run of a function.
type Job struct {
	Group     string
	MemoryMiB int
	Start     func() *api.StartRequest // made when a sandbox is to be started; id, memory and wait are filled in
	Run       func() *api.RunRequest   // made when the sandbox is ready; the id is filled in
	Keep      func(*api.RunReply) bool // whether the sandbox may serve another job after that answer
}

// A Result is how far a job got. Start is nil where a warm sandbox was reused, Run where the runtime refused /init.
type Result struct {
	Sandbox string
	Placed  time.Time // when the job got its sandbox, or leave to start one
	Cold    bool
	Start   *api.StartReply
	Run     *api.RunReply
}

// Phase tells in which call to the node a job failed.
type Phase string

const (
	Starting Phase = "start"
	Running  Phase = "run"
)

// CallError is a call to the node that failed; it unwraps to the gRPC status.
type CallError struct {
	Phase   Phase
	Sandbox string
	Err     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s of sandbox %s: %s", e.Phase, e.Sandbox, status.Convert(e.Err).Message())
}
func (e *CallError) Unwrap() error { return e.Err }

// Do places the job, starts a sandbox if it must, runs it, and gives the sandbox back. The error is *Refused or *CallError, or the context's
// where ctx ended while the job waited; the Result holds what had been reached by then.
func (p *Pool) Do(ctx context.Context, job Job) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()

	for deadline := time.Now().Add(p.cfg.Wait); ; {
		g := p.place(ctx, job, deadline)
		if g.err != nil {
			return Result{}, g.err
		}
		result := Result{Sandbox: g.box.id, Placed: time.Now(), Cold: g.cold}
		keep, err := p.use(ctx, job, g, deadline, &result)
		p.release(g.box, keep)
		if !g.cold && status.Code(errors.Unwrap(err)) == codes.NotFound {
			continue // it ended while it idled, before the node knew of this job: nothing has run
		}
		return result, err
	}
}

// place waits for a grant. A waiter that gives up may have been granted a sandbox meanwhile, which it then gives back.
func (p *Pool) place(ctx context.Context, job Job, deadline time.Time) grant {
	w := &waiter{group: job.Group, memory: job.MemoryMiB, deadline: deadline, grant: make(chan grant, 1)}
	refused := grant{err: &Refused{"the invoker shuts down"}}
	if !p.tell(func(s *state, now time.Time) { w.arrived = now; s.queue = append(s.queue, w) }) {
		return refused
	}
	select {
	case g := <-w.grant:
		return g
	case <-ctx.Done():
	}
	told := p.tell(func(s *state, now time.Time) {
		for i, other := range s.queue {
			if other == w {
				s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
				w.grant <- grant{err: ctx.Err()}
				return
			}
		}
	})
	if !told {
		return refused
	}
	g := <-w.grant
	if g.box != nil {
		p.release(g.box, !g.cold)
		return grant{err: ctx.Err()}
	}
	return g
}

// use starts the sandbox if it is cold and runs the job in it; keep says whether the sandbox is good for another job.
func (p *Pool) use(ctx context.Context, job Job, g grant, deadline time.Time, result *Result) (keep bool, err error) {
	if g.cold {
		result.Start, err = p.start(ctx, job, g.box.id, deadline)
		if status.Code(err) == codes.ResourceExhausted {
			p.tell(p.lookAgain)
		}
		if err != nil {
			return false, &CallError{Starting, g.box.id, err}
		}
		if result.Start.InitStatus != 200 {
			return false, nil
		}
		p.tell(func(_ *state, now time.Time) { g.box.move(running, now) })
	}
	request := job.Run()
	request.Id = g.box.id
	ctx, cancel := context.WithTimeout(ctx, time.Duration(request.TimeoutMs)*time.Millisecond+grace)
	defer cancel()
	if result.Run, err = p.node.Run(ctx, request); err != nil {
		return false, &CallError{Running, g.box.id, err}
	}
	return job.Keep(result.Run), nil
}

// grace is what the node may take to report a run that used up its time.
const grace = 10 * time.Second

func (p *Pool) start(ctx context.Context, job Job, id string, deadline time.Time) (*api.StartReply, error) {
	wait := max(time.Until(deadline), 0)
	ctx, cancel := context.WithTimeout(ctx, wait+p.cfg.Start)
	defer cancel()
	request := job.Start()
	request.Id = id
	request.MemoryMib = uint32(job.MemoryMiB)
	request.WaitMs = uint32(wait.Milliseconds())
	return p.node.Start(ctx, request)
}

// release gives a sandbox back: to idle, or to be stopped.
func (p *Pool) release(b *box, keep bool) {
	p.tell(func(s *state, now time.Time) {
		if keep {
			b.move(idle, now)
		} else {
			p.drop(s, b, now)
		}
	})
}
