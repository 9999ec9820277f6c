package runtime

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// A Job is one activation of an action.
type Job interface {
	// Run returns what to send to the runtime, as /run and at once; its id is filled in. Where the
	// first runtime cannot have seen it, it is made again for another. Where it cannot be made,
	// nothing is sent and the job ends with that error.
	Run() (*api.RunRequest, error)
	// Outdated reports whether the sandbox should serve no other job, though this one went well.
	Outdated() bool
	// Ended takes in how the job ended. Its error is as of Pool.Acquire, *RunError, or that of Run.
	Ended(Result, error)
}

// A Result says how far a job got.
type Result struct {
	pool.Placement
	Run    *api.RunReply        // nil: no runtime answered to /run
	Answer *activation.Response // to /run, or of a runtime that refused /init; nil: there is none
}

// RunError is a /run that failed; it unwraps to the gRPC status.
type RunError struct {
	Sandbox string
	Err     error
}

func (e *RunError) Error() string {
	return fmt.Sprintf("run of sandbox %s: %s", e.Sandbox, status.Convert(e.Err).Message())
}
func (e *RunError) Unwrap() error { return e.Err }

// Submit has a job done in a sandbox of the pool, and returns at once. No goroutine waits with it.
func Submit(p *pool.Pool, demand pool.Demand, j Job) {
	demand.Ready = Ready
	p.Acquire(demand, func(l *pool.Lease, err error) {
		result := Result{Placement: l.Placement}
		switch {
		case errors.Is(err, errInit):
			refused := activation.ClassifyInit(int(l.Start.InitStatus), l.Start.InitReply)
			result.Answer, err = &refused, nil
		case err == nil:
			var again bool
			if again, err = result.run(l, j); again {
				return
			}
		}
		j.Ended(result, err)
	})
}

// run sends /run to the sandbox and gives the lease back. again: the job waits for another sandbox.
func (r *Result) run(l *pool.Lease, j Job) (again bool, err error) {
	request, err := j.Run()
	if err != nil {
		l.Release(true)
		return false, err
	}
	request.Id = l.Sandbox
	r.Run, err = l.Client().Run(l.Context(), request) // which has its own time limit
	switch {
	case err == nil:
		answer := activation.Classify(int(r.Run.Status), r.Run.Body)
		r.Answer = &answer
		fine := answer.Status == activation.Success || answer.Status == activation.ApplicationError
		l.Release(fine && !j.Outdated())
		return false, nil
	case l.Retry(err):
		return true, nil
	}
	l.Release(false)
	return false, &RunError{l.Sandbox, err}
}

// errInit is why a sandbox is not ready whose runtime refused its function.
var errInit = errors.New("the runtime refused /init")

// Ready returns an error unless the runtime has taken its function.
func Ready(started *api.StartReply) error {
	if started.InitStatus != 200 {
		return errInit
	}
	return nil
}
