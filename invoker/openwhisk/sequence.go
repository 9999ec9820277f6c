package openwhisk

import (
	"net/http"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

// chain runs the components of a sequence, each on the result of the one before. An error ends it.
func (c *composition) chain() activation.Response {
	if c.atoms == nil {
		c.atoms = new(int)
	}
	last := activation.Response{Result: c.arguments}
	for _, name := range c.on.Exec.Components {
		on, err := c.api.component(c.user, name)
		if err != nil {
			return activation.Failed(activation.ApplicationError,
				"The sequence cannot go on: "+err.Error()+".")
		}
		if on.Exec.Kind != entity.Sequence {
			if *c.atoms++; *c.atoms > entity.MaxComponents {
				return activation.Failed(activation.ApplicationError,
					"The sequence has too many actions.")
			}
		}
		if last = c.step(on,
			last.Result, false).record.Response; last.Status != activation.Success {
			break
		}
	}
	return last
}

// composable refuses a sequence that contains itself, an action that is not there or not for its
// owner, or too many functions, those of sequences in it included.
func (a *API) composable(user *access.Identity, made *entity.Action) error {
	if made.Exec.Kind != entity.Sequence {
		return nil
	}
	path := made.Path()
	_, err := a.flatten(user, made.Exec.Components, 0, func(r *resolved) error {
		if r.path == path {
			return badRequest("the sequence %s would contain itself", path)
		}
		return nil
	})
	if statusOf(err) == http.StatusNotFound {
		err = badRequest("a component of the sequence is missing: %v", err)
	}
	return err
}

// flatten counts the functions of a sequence and shows see every component, those of sequences in
// it included.
func (a *API) flatten(user *access.Identity, components []string, depth int,
	see func(*resolved) error) (count int, err error) {
	for _, name := range components {
		on, err := a.component(user, name)
		if err != nil {
			return count, err
		}
		if err := see(on); err != nil {
			return count, err
		}
		within := 1
		if on.Exec.Kind == entity.Sequence {
			if depth == entity.MaxComponents { // a circle that others made
				return count, badRequest("the sequence is nested more than %d deep",
					entity.MaxComponents)
			}
			if within, err = a.flatten(user, on.Exec.Components, depth+1, see); err != nil {
				return count, err
			}
		}
		if count += within; count > entity.MaxComponents {
			return count, badRequest(
				"the sequence has more than %d actions, those of sequences in it included",
				entity.MaxComponents)
		}
	}
	return count, nil
}
