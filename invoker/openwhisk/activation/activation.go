// Package activation holds the record of one run of an action: its outcome, its times, its logs
// and, if a sandbox had to be started for it, the timeline of that cold start.
//
// A Record speaks OpenWhisk's JSON, in the two forms clients know: the full one (its response names
// the outcome in words) and the summary of a list (the outcome as a number). The cold start is an
// annotation of our own, `coldStart`.
package activation

import (
	"encoding/json"
	"time"

	"github.com/fastiov/fastiov/invoker/coldstart"
)

// Status says how an activation ended, by OpenWhisk's numbers.
type Status int

const (
	Success          Status = iota
	ApplicationError        // the action answered with an error
	// The action could not be run: it does not start, crashes, answers nonsense or takes too long.
	DeveloperError
	InternalError // not the action's fault
)

// Statuses lists every Status.
var Statuses = []Status{Success, ApplicationError, DeveloperError, InternalError}

func (s Status) String() string {
	return [...]string{"success", "application error", "action developer error",
		"whisk internal error"}[s]
}

// A Response is the outcome: Result is a JSON object or array.
type Response struct {
	Status Status          `json:"s,omitzero"`
	Result json.RawMessage `json:"-"` // kept beside, see stored.go
}

// Limits of the action that was run.
type Limits struct {
	TimeoutMs   int `json:"timeout"`
	MemoryMB    int `json:"memory"`
	LogsMB      int `json:"logs"`
	Concurrency int `json:"concurrency"`
}

// A Record is one finished activation. Its times cover init and run, not the wait for a sandbox,
// which is Wait. The tags are those of its stored form, see stored.go; clients get that of json.go.
type Record struct {
	ID        string `json:"id"`
	Namespace string `json:"ns"`
	Name      string `json:"n"`
	Version   string `json:"v,omitzero"`
	Subject   string `json:"sub,omitzero"`
	Kind      string `json:"k,omitzero"`
	Path      string `json:"p,omitzero"` // namespace/name of the action
	// The namespace/name of the package binding that it was called by.
	Binding  string    `json:"b,omitzero"`
	Cause    string    `json:"of,omitzero"` // id of the activation that caused it
	CausedBy string    `json:"cb,omitzero"` // the kind of that one: "sequence"
	Limits   Limits    `json:"lim,omitzero"`
	Start    time.Time `json:"t,omitzero"`
	End      time.Time `json:"e,omitzero"` // zero: of a trigger, which runs nothing
	// The time from accepting the request to init, or to run if the sandbox was warm.
	Wait time.Duration `json:"w,omitzero"`
	// Init belongs to a cold start; with Cold set it is reported even when 0.
	Init     time.Duration `json:"i,omitzero"`
	TimedOut bool          `json:"to,omitzero"`
	Response Response      `json:"r,omitzero"`
	Logs     []string      `json:"l,omitempty"`
	// If Cold is nil, a warm sandbox was reused, or none was reached.
	Cold *coldstart.Record `json:"c,omitempty"`
	// Set for a sequence or a conductor, whose Logs are the ids of its steps.
	Composed *Composed `json:"co,omitempty"`
}

// Composed holds what is specific to an activation that consists of others.
type Composed struct {
	Topmost   bool          `json:"t,omitzero"` // is a step of none itself
	Conductor bool          `json:"c,omitzero"`
	Ran       time.Duration `json:"r,omitzero"` // all its steps together: its duration, for clients
}

// Duration returns how long the activation ran, without the time it waited. Start and End may come
// from different processes, so it returns 0 if the clock was set back between them.
func (r *Record) Duration() time.Duration {
	if r.Composed != nil {
		return r.Composed.Ran
	}
	return max(r.End.Sub(r.Start), 0)
}
