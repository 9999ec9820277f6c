package openwhisk

import (
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/raw"
)

// conduct asks the conductor what is next and runs that. Then it asks again with the result and the
// state that the conductor left, until the conductor names nothing, or fails. If a component
// failed, or cannot be run, the conductor is told.
func (c *composition) conduct() activation.Response {
	c.atoms = nil
	if c.budget == nil {
		c.budget = &budget{}
	}
	payload, state := c.arguments, raw.Object(nil)
	for {
		if c.budget.conductors >= maxTurns {
			return activation.Failed(activation.ApplicationError,
				"The composition has too many actions.")
		}
		c.budget.conductors++
		turn := c.step(c.on, reminded(payload, state), true).record.Response
		var wish raw.Object
		if turn.Status != activation.Success ||
			json.Unmarshal(turn.Result, &wish, raw.Lenient) != nil {
			return turn // an array is a result, too
		}
		state = nil
		if value, is := wish["state"]; is {
			state = raw.Box("state", value)
		}
		params, is := wish["params"]
		if is {
			params = raw.Box("value", params).JSON()
		}
		name, goesOn := wish["action"]
		if !goesOn {
			if is {
				return activation.Classify(200, params)
			}
			return turn
		}
		next, problem := c.next(name)
		if problem != "" {
			payload = activation.Failed(activation.ApplicationError, problem).Result
			continue
		}
		end := c.step(next, params, false)
		if end.refused != nil {
			return activation.Failed(activation.InternalError, "The composition cannot go on: "+
				end.refused.Error())
		}
		payload = end.record.Response.Result
	}
}

// next returns the action that the conductor named, or the reason why it cannot be run.
func (c *composition) next(name jsontext.Value) (next *resolved, problem string) {
	var text string
	if json.Unmarshal(name, &text) != nil {
		return nil, "The conductor names as its next action what is no name: " + raw.Excerpt(name)
	}
	// The action is in the default namespace, perhaps in a package of it.
	if !strings.HasPrefix(text, "/") && strings.Count(text, "/") < 2 {
		text = "/_/" + text
	}
	path, err := entity.ParsePath(text, c.user.Namespace)
	if err != nil {
		return nil, "The conductor names as its next action what is no name: " + raw.Excerpt(name)
	}
	if c.budget.components >= entity.MaxComponents {
		return nil, "The composition has too many actions."
	}
	if next, err = c.api.invocable(c.user, path); err != nil {
		return nil, "The conductor's next action cannot be run: " + err.Error()
	}
	if !next.composed || next.Exec.Kind == entity.Sequence {
		c.budget.components++ // another conductor is counted by its turns
	}
	return next, ""
}

// reminded returns the arguments of a conductor: the payload, and over it the state that it left.
func reminded(payload []byte, state raw.Object) []byte {
	if len(state) == 0 && len(payload) > 0 && payload[0] == '{' {
		return payload
	}
	whole := raw.Box("value", payload)
	for name, value := range state {
		whole[name] = value
	}
	return whole.JSON()
}
