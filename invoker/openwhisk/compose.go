package openwhisk

import (
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

// A composition is an activation that consists of others, its steps, one after another. A sequence
// names them when it is put (sequence.go), a conductor when the step before has ended
// (conductor.go).
//
// Each step is an activation of its own, caused by the composition. The promise to the caller is
// about the composition: it counts as sent when its first step is, and from then on none of its
// steps is ever run again.
type composition struct {
	*invocation
	begun  time.Time
	ran    time.Duration // all steps so far
	memory int           // the most that one of them may take, in MB
	steps  []string      // their ids

	// Bounds on what is left to run: without them functions could call each other for ever.
	depth int // how many compositions this one is within
	// The number of functions that a sequence has run, with the sequences in it; nil in a
	// conductor's.
	atoms  *int
	budget *budget // of the outermost conductor, for all that is within it; nil where there is none
}

// A budget counts what a conductor has used up, with the conductors that it called.
type budget struct{ components, conductors int }

// With its turns a conductor can run as many components as a sequence may have, and one conductor
// of its own for each.
const maxTurns = 2*entity.MaxComponents + 1

// compose runs what the action stands for and returns the record of the whole.
func (v *invocation) compose() *activation.Record {
	c := &composition{invocation: v, begun: time.Now()}
	if above := v.within; above != nil {
		c.depth, c.atoms, c.budget = above.depth+1, above.atoms, above.budget
	}
	var response activation.Response
	switch {
	case c.depth > maxTurns: // actions that were changed after they were put into each other
		response = activation.Failed(activation.ApplicationError,
			"The composition is too deep: its actions contain each other.")
	case v.on.Exec.Kind == entity.Sequence:
		response = c.chain()
	default:
		response = c.conduct()
	}
	r := v.blank()
	r.Kind, r.Response, r.Logs = entity.Sequence, response, c.steps
	r.Start, r.End = c.begun, c.begun.Add(time.Since(c.begun)) // the clock may be set meanwhile
	r.Wait = max(c.begun.Sub(v.accepted), 0)
	if c.memory > 0 {
		r.Limits.MemoryMB = c.memory
	}
	r.Composed = &activation.Composed{Topmost: v.within == nil,
		Conductor: v.on.Exec.Kind != entity.Sequence, Ran: c.ran}
	return r
}

// step runs an action with the result of the step before, and returns how that ended.
func (c *composition) step(on *resolved, result []byte, conductor bool) completion {
	v := c.api.invocation(call{
		user: c.user, key: c.key, on: on, transaction: c.transaction, accepted: time.Now(),
		cause: c.id, causedBy: entity.Sequence, within: c, conductor: conductor,
		bytes: c.api.holding(c.user),
		wait:  c.wait,
	})
	var end completion
	var err error
	if v.arguments, err = on.fixed.Lay(result); err == nil {
		err = v.bytes.upTo(int64(len(v.arguments)))
	}
	if err == nil {
		end = v.runAndWait()
	} else { // a result may have been JSON to the runtime and be none that we pass on
		end.record = v.failed(activation.ApplicationError,
			"The result of the action before cannot be passed on: "+err.Error())
		v.finish(end.record)
	}
	c.steps = append(c.steps, v.id)
	c.ran += end.record.Duration()
	c.memory = max(c.memory, end.record.Limits.MemoryMB)
	return end
}

// invocable finds an action that the caller may run: where it is a sequence, its components too.
func (a *API) invocable(user *access.Identity, path entity.Path) (*resolved, error) {
	on, err := a.allowed(user, path)
	if err != nil || on.Exec.Kind != entity.Sequence {
		return on, err
	}
	for _, name := range on.Exec.Components {
		if _, err := a.component(user, name); statusOf(err) == http.StatusForbidden {
			return nil, err // that one is missing is the step's to say
		}
	}
	return on, nil
}

func (a *API) component(user *access.Identity, name string) (*resolved, error) {
	path, err := entity.ParsePath(name, user.Namespace)
	if err != nil {
		return nil, err
	}
	return a.allowed(user, path)
}

// allowed resolves an action for a user who is going to run it. The action may need no more than
// the user's namespace may use.
func (a *API) allowed(user *access.Identity, path entity.Path) (*resolved, error) {
	on, err := a.resolve(user, path)
	if err != nil || on.Exec.Kind == entity.Sequence {
		return on, err
	}
	bounds := a.bounds(user)
	return on, bounds.Allow(&on.Limits)
}

// bounds returns the bounds of an action's limits for a user.
func (a *API) bounds(user *access.Identity) entity.Bounds {
	l := user.Limits
	return a.cfg.Bounds.AtMost(l.MaxActionTimeout, l.MaxActionMemory, l.MaxActionLogs)
}

// mayNeedKey reports whether an action, or one that it stands for, is given its caller's key.
func (a *API) mayNeedKey(user *access.Identity, on *resolved) bool {
	needs := on.Annotations.True("provide-api-key")
	if on.Exec.Kind != entity.Sequence {
		return needs || on.composed // The actions that a conductor calls are not known beforehand.
	}
	_, _ = a.flatten(user, on.Exec.Components, 0, func(r *resolved) error {
		needs = needs || r.Exec.Kind != entity.Sequence && a.mayNeedKey(user, r)
		return nil
	})
	return needs
}
