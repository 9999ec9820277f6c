package openwhisk

import (
	"context"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/telemetry"
)

// A call is one action to be run for a user: by a POST, by a fired rule, or as a step of a
// composition.
type call struct {
	user        *access.Identity
	key         access.Key // as the caller sent it, for actions that ask for it
	on          *resolved
	arguments   []byte  // JSON, parameters included
	bytes       holding // of the arguments, until the call has ended
	transaction string
	accepted    time.Time
	wait        time.Duration // for a sandbox, at most; 0: as the pool has it
	cause       string        // the id of the activation that this one is a step of
	causedBy    string        // the kind of that one

	within *composition // the composition that this is a step of, or nil
	// The step is the composition's own conductor, which decides what is next.
	conductor bool
}

// A completion holds the end of a call. A refused call has a record too, for a caller that looks
// for its id.
type completion struct {
	record  *activation.Record
	refused error
	how     pool.Kind // it came to its sandbox
	ran     bool      // there
	took    time.Duration
}

// call returns what is counted of it.
func (c *completion) call() *telemetry.Call {
	r, status := c.record, telemetry.Status(c.record.Response.Status)
	if c.refused != nil {
		status = telemetry.Refused
	}
	return &telemetry.Call{API: telemetry.OpenWhisk, ID: r.ID, Function: r.Path, Kind: r.Kind,
		Status: status, How: c.how, Ran: c.ran, Took: c.took, Cold: r.Cold}
}

// Started is a call under way, or at its end where that was waited for.
type started struct {
	id  string
	end *completion
}

// start runs a call that was admitted and waits for its end, at most as long as is said. It goes on
// when the waiting is over, and when the caller has gone: then it has been promised, durably, that
// there will be a record of it.
func (a *API) start(ctx context.Context, c call, wait time.Duration) (started, error) {
	if err := a.refuses(); err != nil {
		c.bytes.end()
		c.user.Done()
		return started{}, err
	}
	c.wait = a.queueing(&c, wait)
	v := a.invocation(c)
	if wait <= 0 {
		if err := v.promise(ctx); err != nil {
			v.bytes.end()
			v.user.Done()
			return started{}, err
		}
		v.run(func(completion) { v.user.Done() })
		return started{id: v.id}, nil
	}
	done := make(chan completion, 1)
	v.run(func(end completion) {
		v.user.Done()
		done <- end
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case end := <-done:
		return started{v.id, &end}, nil
	case <-timer.C:
	case <-ctx.Done():
		return started{id: v.id}, nil // nobody is left to be promised anything
	}
	if err := v.promise(ctx); err != nil {
		return started{id: v.id}, err
	}
	return started{id: v.id}, nil
}

// queueing returns how long a call may wait for a sandbox, if its caller waits that long for its
// end. A caller with the longest wait allowed is told in time that there is no sandbox. Any other
// is promised a record, and its call may wait until the promise expires.
func (a *API) queueing(c *call, wait time.Duration) time.Duration {
	if wait >= a.cfg.Blocking {
		return min(a.cfg.Pool.Wait, a.cfg.Blocking-a.cfg.Blocking/20)
	}
	return max(expiry-age(c.accepted), 1)
}

// An invocation is a call on its way to its record.
type invocation struct {
	call
	api   *API
	id    string
	ended func(completion)
	promised
}

func (a *API) invocation(c call) *invocation {
	return &invocation{call: c, api: a, id: store.NewID()}
}

// run runs the action, or the steps that it stands for, and returns at once. When it has ended and
// its record is kept, ended is called. An action that waits for a sandbox holds no goroutine.
func (v *invocation) run(ended func(completion)) {
	v.ended = ended
	v.api.running.Add(1)
	if v.on.composed && !v.conductor {
		go func() { v.end(completion{record: v.compose()}) }()
		return
	}
	runtime.Submit(v.api.pool, v.demand(), v)
}

// Ended records how its way through a sandbox ended.
func (v *invocation) Ended(result runtime.Result, err error) {
	end := completion{how: result.How, ran: result.Run != nil}
	end.took = age(v.accepted)
	end.record, end.refused = v.record(result, err), refusal(err)
	v.end(end)
}

func (v *invocation) end(as completion) {
	defer v.api.running.Done()
	defer v.unmarkSent()
	if v.finish(as.record) {
		v.api.telemetry.Ended(as.call())
	}
	v.bytes.end()
	v.ended(as)
}

// runAndWait is run for a caller that cannot go on before the end.
func (v *invocation) runAndWait() completion {
	done := make(chan completion, 1)
	v.run(func(end completion) { done <- end })
	return <-done
}
