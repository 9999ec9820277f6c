package runtime

import "encoding/json"

// HandlerKey is the annotation of an action that names the runtime handler of its sandboxes.
const HandlerKey = "runtime-handler"

// Handler returns the name that is the annotation's value, or "" where there is none: the node's
// first handler then runs the sandbox. A value other than a text no node has, which it says.
func Handler(value json.RawMessage) (name string) {
	if len(value) > 0 && json.Unmarshal(value, &name) != nil {
		return string(value)
	}
	return name
}
