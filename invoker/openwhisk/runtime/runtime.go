// Package runtime runs activations in OpenWhisk's runtimes: it writes the bodies of /init and /run,
// and sends /run to a sandbox that the pool leases.
package runtime

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/raw"
)

// A Place says which action runs, and for whom.
type Place struct {
	Namespace string // of its caller
	Action    string // its full name, /namespace/…
	Version   string
}

// A Call says for which call an action runs. One with a Place alone is for a sandbox that is
// started ahead of its first call.
type Call struct {
	Place
	Activation  string
	Transaction string
	Deadline    time.Time
	Key         string // its caller's, where the action gets it
}

// A fact is a field of /run, or a variable of the environment that /init sets.
type fact struct{ field, variable, value string }

const mostFacts = 7

// facts appends what the call says, which are mostFacts at most.
func (c *Call) facts(to []fact) []fact {
	to = append(to,
		fact{"namespace", "__OW_NAMESPACE", c.Namespace},
		fact{"action_name", "__OW_ACTION_NAME", c.Action},
		fact{"action_version", "__OW_ACTION_VERSION", c.Version})
	if c.Activation == "" {
		return to
	}
	to = append(to,
		fact{"activation_id", "__OW_ACTIVATION_ID", c.Activation},
		fact{"transaction_id", "__OW_TRANSACTION_ID", c.Transaction},
		fact{"deadline", "__OW_DEADLINE", strconv.FormatInt(c.Deadline.UnixMilli(), 10)})
	if c.Key != "" {
		to = append(to, fact{"api_key", "__OW_API_KEY", c.Key})
	}
	return to
}

// A Program goes to a runtime by /init.
type Program[Code string | []byte] struct {
	Name   string
	Main   string // empty: main
	Binary bool
	Code   Code
}

// Init returns the body of /init. The environment is that of the action; what the call says wins.
func Init[Code string | []byte](p Program[Code], c Call, environment map[string]string) []byte {
	all := maps.Clone(environment)
	if all == nil {
		all = map[string]string{}
	}
	for _, f := range c.facts(make([]fact, 0, mostFacts)) {
		all[f.variable] = f.value
	}
	if p.Main == "" {
		p.Main = "main"
	}
	b := make([]byte, 0, len(p.Code)+len(p.Code)/8+1024)
	b = raw.Append(append(b, `{"value":{"name":`...), p.Name)
	b = raw.Append(append(b, `,"main":`...), p.Main)
	b = strconv.AppendBool(append(b, `,"binary":`...), p.Binary)
	b = raw.Append(append(b, `,"code":`...), p.Code)
	b = append(b, `,"env":{`...)
	names := slices.AppendSeq(make([]string, 0, len(all)), maps.Keys(all))
	slices.Sort(names)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = raw.Append(append(raw.Append(b, name), ':'), all[name])
	}
	return append(b, `}}}`...)
}

// Body returns the body of /run. The arguments are JSON, and spliced in unread.
func Body(c Call, arguments []byte) []byte {
	b := make([]byte, 0, len(arguments)+384)
	b = append(append(b, `{"value":`...), arguments...)
	for _, f := range c.facts(make([]fact, 0, mostFacts)) {
		b = raw.Append(append(append(append(b, `,"`...), f.field...), `":`...), f.value)
	}
	return append(b, '}')
}
